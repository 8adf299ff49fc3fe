// The end of a step: accepted rows close up in the tails, and full tail blocks are sealed; all layers in one launch.

// A slot for the block that is being sealed, and its admission: a free one, else that of a resident which the evictor gives
// up; none if no resident may leave.
__device__ __forceinline__ u32 admit_sealed(const Chain& c, const Pool& p, Counts* counts, u32* slot_of, u32 block,
                                            u32 first, u32 end, u32* slots, u32* marks) {
    u32 found = free_slots(p, slots, 0, 1);
    if (!found) {
        u32 count = 0;
        for (u32 from = first; from < end; from += blockDim.x) {
            u32 slot = from + threadIdx.x < end ? slot_of[from + threadIdx.x] : NONE;
            bool may = slot != NONE && !(p.meta[slot].flags & SELECTED);
            u32 all, rank = block_rank(may, all);
            if (may) slots[count + rank] = slot;
            count += all;
        }
        __syncthreads();
        if (!count) return NONE;
        u32 wasted = evict(p, slot_of, slots, marks, count, 1);
        if (threadIdx.x == 0) {
            counts->seal_evicted += 1;
            counts->seal_wasted += wasted;
        }
    }
    __syncthreads();
    u32 slot = slots[0];
    if (threadIdx.x == 0) {
        u32 number = p.state[0];
        slot_of[block] = slot;
        p.meta[slot] = {block, p.now, p.now, p.now, 0, 0.0f, 0, own_word(number)};
        p.state[0] = number + 1;
    }
    __syncthreads();
    return slot;
}

// The first block of a tail to its chunk in the host store and, if there is one, to its slot.
__device__ __forceinline__ void seal(const half_t* tail, u32 tail_tokens, uint4* host, uint4* slot) {
    const u32 part = TOKENS * HEAD_DIM / 8;
    for (u32 i = threadIdx.x; i < 2 * part; i += blockDim.x) {
        uint4 x = ((const uint4*)(tail + (u64)(i / part) * tail_tokens * HEAD_DIM))[i % part];
        host[i] = x;
        if (slot) slot[i] = x;
    }
}

// One thread block a (pool, layer). A sequence's record: moves, block to be sealed or NONE, tokens behind it, then
// (from, to) of every move. Dynamic shared memory: 2 words a slot, or a block's keys and vectors if they are more.
extern "C" __global__ void __launch_bounds__(THREADS, 1) commit(const Chain c, const u32* records, u32 now) {
    extern __shared__ u32 lists[];
    u32 pool = blockIdx.x, layer = blockIdx.y, s = pool / c.kv_heads;
    const u32* record = records + (u64)s * c.record;
    u32 moves = record[0], block = record[1], rest = record[2];
    if (!moves && block == NONE) return;
    Layer l = c.layers[layer];
    half_t* tail = l.tail + (u64)pool * 2 * c.tail_tokens * HEAD_DIM;
    // A thread has one coordinate of keys or values, so nobody sees another's writes.
    for (u32 i = threadIdx.x; i < 2 * HEAD_DIM; i += blockDim.x) {
        half_t* column = tail + (u64)(i / HEAD_DIM) * c.tail_tokens * HEAD_DIM + i % HEAD_DIM;
        for (u32 m = 0; m < moves; m++) column[record[4 + 2 * m] * HEAD_DIM] = column[record[3 + 2 * m] * HEAD_DIM];
    }
    if (block == NONE) return;
    __syncthreads();
    u32 sealed = block + 1, first = min(c.sink, sealed), end = max(sealed > c.window ? sealed - c.window : 0, first);
    u32 slot = NONE;
    if (c.pooled) {
        Pool p = pool_of(c, layer, pool);
        p.now = now;
        u32* slot_of = c.slot_of + ((u64)layer * c.pools + pool) * c.blocks;
        slot = admit_sealed(c, p, counts_of(c, layer, pool), slot_of, block, first, end, lists, lists + c.pool_slots);
    }
    if (c.by_block) slot = block;
    half_t* to = l.slots + ((u64)pool * c.slots + slot) * 2 * TOKENS * HEAD_DIM;
    seal(tail, c.tail_tokens, (uint4*)chunk_of(c, layer, pool, block), slot == NONE ? nullptr : (uint4*)to);
#ifdef RANKED
    __syncthreads();
    float *keys = (float*)lists, *vectors = keys + TOKENS * HEAD_DIM;
    for (u32 i = threadIdx.x; i < TOKENS * HEAD_DIM; i += blockDim.x) keys[i] = to_float(tail[i]);
    __syncthreads();
    encode_block(l.fit + (u64)pool * FIT_LEN, keys, vectors, l.summaries + ((u64)pool * c.blocks + block) * SUMMARY_BYTES);
#endif
    __syncthreads();
    for (u32 i = threadIdx.x; i < 2 * HEAD_DIM; i += blockDim.x) {
        half_t* column = tail + (u64)(i / HEAD_DIM) * c.tail_tokens * HEAD_DIM + i % HEAD_DIM;
        for (u32 t = 0; t < rest; t++) column[t * HEAD_DIM] = column[(TOKENS + t) * HEAD_DIM];
    }
    if (c.pooled) {
        renew_entries(c, l, layer, pool, first, end, sealed);
    } else if (threadIdx.x == 0) {
        l.entries[(u64)pool * c.slots + block] = block;
        l.entry_count[pool] = sealed;
    }
}

// The own words of blocks that were admitted on the host, which left their numbers there.
extern "C" __global__ void __launch_bounds__(THREADS, 4) number_slots(SlotMeta* meta, u32 count) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && meta[i].block != NONE) meta[i].own = own_word(meta[i].own);
}
