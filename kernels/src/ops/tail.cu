// One thread block a (row, KV head). tail [seqs][kv_heads][K: tail_tokens x d | V: the same].
extern "C" __global__ void tail_append(const half_t* k, const half_t* v, const u32* seq, const u32* first,
                                       const u32* committed, u32 kv_heads, u32 tail_tokens, u32 d, half_t* tail) {
    let_next_start();
    u32 r = blockIdx.x, head = blockIdx.y, s = seq[r];
    u32 at = committed[s] + r - first[s];
    wait_for_last();
    if (at >= tail_tokens) return;
    u64 from = ((u64)r * kv_heads + head) * d;
    u64 half = (u64)tail_tokens * d;
    u64 to = ((u64)s * kv_heads + head) * 2 * half + (u64)at * d;
    for (u32 i = threadIdx.x; i < d; i += blockDim.x) {
        tail[to + i] = k[from + i];
        tail[to + half + i] = v[from + i];
    }
}

// Moves in order: a thread has one coordinate of one KV head's keys or values, so nobody sees another's writes.
extern "C" __global__ void tail_compact(const u32* moves, u32 count, u32 kv_heads, u32 tail_tokens, u32 d,
                                        half_t* tail) {
    u32 head = blockIdx.x, part = blockIdx.y;
    u64 half = (u64)tail_tokens * d;
    for (u32 i = threadIdx.x; i < d; i += blockDim.x) {
        for (u32 m = 0; m < count; m++) {
            u64 base = (((u64)moves[3 * m] * kv_heads + head) * 2 + part) * half + i;
            tail[base + (u64)moves[3 * m + 2] * d] = tail[base + (u64)moves[3 * m + 1] * d];
        }
    }
}
