// What attention tells of the resident blocks: histories, and the mass of what is always there.

// ln of the sum of exp over x(0) .. x(count - 1), by one warp; -inf if there is nothing.
template <class Value>
__device__ __forceinline__ float warp_log_sum_exp(Value x, u32 count) {
    u32 lane = threadIdx.x & 31;
    float top = -INF, sum = 0.0f;
    for (u32 i = lane; i < count; i += 32) top = fmaxf(top, x(i));
    top = warp_max(top);
    if (top == -INF) return top;
    for (u32 i = lane; i < count; i += 32) sum += expf(x(i) - top);
    return top + logf(warp_sum(sum));
}

// One thread block a pool. The mass of row 0 on every attended block, mean over the group's heads, goes to the histories;
// the layer's list of moves starts anew.
extern "C" __global__ void __launch_bounds__(256) observe(const Chain c, const Layer l, u32 layer, const u32* first) {
    __shared__ float total[GROUP];
    u32 pool = blockIdx.x, s = pool / c.kv_heads, kv = pool % c.kv_heads, warp = threadIdx.x >> 5;
    if (pool == 0 && threadIdx.x == 0) c.move_count[layer] = 0;
    u32 row = first[s];
    if (row == first[s + 1]) return;
    Pool p = pool_of(c, layer, pool);
    u32 n = l.entry_count[pool], width = c.slots + 1;
    const u32* entries = l.entries + (u64)pool * c.slots;
    const float* lse = l.block_lse + ((u64)row * c.kv_heads + kv) * GROUP * width;
    for (u32 h = warp; h < GROUP; h += blockDim.x / 32) {
        const float* of = lse + (u64)h * width;
        float sum = warp_log_sum_exp([&](u32 i) { return i < n ? of[i] : of[width - 1]; }, n + 1);
        if ((threadIdx.x & 31) == 0) total[h] = sum;
    }
    __syncthreads();
    // The mean block's share: of all sealed blocks and the tail.
    float fair = 1.0f / (float)(seq_control(c.control, s).blocks + 1);
    const u32* slot_of = c.slot_of + ((u64)layer * c.pools + pool) * c.blocks;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        u32 slot = c.by_block ? slot_of[entries[i]] : entries[i];
        if (slot == NONE) continue;
        float mass = 0.0f;
        for (u32 h = 0; h < GROUP; h++) mass += expf(lse[(u64)h * width + i] - total[h]) / (float)GROUP;
        p.meta[slot].mass = mass;
        if (mass >= fair) {
            p.meta[slot].last_attended = p.now;
            p.meta[slot].flags &= ~UNUSED;
        }
    }
    if (threadIdx.x == 0) counts_of(c, layer, pool)->attended = n;
}

// One warp a ranking query, in the order of their lift; one thread block a pool: ln of the mass of pinned entries and tail.
extern "C" __global__ void __launch_bounds__(256) pinned_mass(const Chain c, const Layer l, u32 layer, const u32* first) {
    u32 pool = blockIdx.x, s = pool / c.kv_heads, kv = pool % c.kv_heads;
    SeqControl seq = seq_control(c.control, s);
    Pool p = pool_of(c, layer, pool);
    u32 n = l.entry_count[pool], width = c.slots + 1;
    const u32* entries = l.entries + (u64)pool * c.slots;
    u32 queries = query_count(seq);
    for (u32 j = threadIdx.x >> 5; j < queries; j += blockDim.x / 32) {
        // The j / GROUP-th set bit.
        u32 rows = seq.rows;
        for (u32 skip = j / GROUP; skip; skip--) rows &= rows - 1;
        u32 row = first[s] + __ffs(rows) - 1;
        const float* of = l.block_lse + (((u64)row * c.kv_heads + kv) * GROUP + j % GROUP) * width;
        auto value = [&](u32 i) {
            if (i == n) return of[width - 1];
            u32 block = c.by_block ? entries[i] : p.meta[entries[i]].block;
            return block < seq.first || block >= seq.end ? of[i] : -INF;
        };
        float sum = warp_log_sum_exp(value, n + 1);
        if ((threadIdx.x & 31) == 0) c.resident[(u64)pool * c.queries + j] = sum;
    }
}
