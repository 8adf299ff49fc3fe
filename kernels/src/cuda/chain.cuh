// What the chain's kernels share; see cuda/chain/view.rs, which has the same structs.

// A copy from the host store to a slot: addresses.
struct Move {
    u64 from, to;
};

// What a pool did in a step; core's PoolCounts.
struct Counts {
    u32 wanted, hits, fetched, dropped, evicted, wasted, nans, attended, seal_evicted, seal_wasted;
};

// The arrays of a layer.
struct Layer {
    half_t *slots, *tail;
    u8* summaries;
    float* fit;
    u32 *entries, *entry_count;
    half_t* q;
    float* block_lse;
};

struct Chain {
    // [layers][pools][pool_slots], [layers][pools][blocks], [layers][pools][4], [layers][pools].
    SlotMeta* meta;
    u32 *slot_of, *state;
    const u64* seeds;
    // [layers][pools * cap], [layers].
    Move* moves;
    u32* move_count;
    // [layers][pools].
    Counts* counts;
    // [pools][blocks], [pools][queries].
    const float* scores;
    float* resident;
    // See control.cuh; its first word is the step's number.
    const u32* control;
    // Of each sequence: blocks of its prompt, address of the prompt's extent, addresses of the grown ones.
    const u64* extents;
    const Layer* layers;
    u32 pools, kv_heads, layer_count, slots, pool_slots, blocks, tail_tokens, queries;
    u32 k, cap, sink, window, extent_words, growth_blocks;
    // Block b lies in physical slot b.
    u32 by_block;
    // Only pinned blocks and those of the last selection are attended.
    u32 selected_only;
    // There are pools; none in `dense`.
    u32 pooled;
    // Words of a sequence's record of a commit.
    u32 record;
};

__device__ __forceinline__ Pool pool_of(const Chain& c, u32 layer, u32 pool) {
    u64 all = (u64)layer * c.pools + pool;
    return {c.meta + all * c.pool_slots, c.pool_slots, c.state + all * 4, c.seeds[all], c.control[0]};
}

__device__ __forceinline__ Counts* counts_of(const Chain& c, u32 layer, u32 pool) {
    return c.counts + (u64)layer * c.pools + pool;
}

// Address of a chunk of the host store.
__device__ __forceinline__ u64 chunk_of(const Chain& c, u32 layer, u32 pool, u32 block) {
    const u64* of = c.extents + (u64)(pool / c.kv_heads) * c.extent_words;
    u64 prompt = of[0], base = of[1], blocks = prompt, at = block;
    if (block >= prompt) {
        u64 own = block - prompt;
        base = of[2 + own / c.growth_blocks];
        blocks = c.growth_blocks;
        at = own % c.growth_blocks;
    }
    return base + ((layer * blocks + at) * c.kv_heads + pool % c.kv_heads) * (4 * TOKENS * HEAD_DIM);
}

// The blocks of a pool that are attended, by block id, of `sealed` blocks with candidates first .. end.
__device__ __forceinline__ void renew_entries(const Chain& c, const Layer& l, u32 layer, u32 pool, u32 first, u32 end,
                                              u32 sealed) {
    const SlotMeta* meta = c.meta + ((u64)layer * c.pools + pool) * c.pool_slots;
    const u32* slot_of = c.slot_of + ((u64)layer * c.pools + pool) * c.blocks;
    u32* entries = l.entries + (u64)pool * c.slots;
    u32 done = 0;
    for (u32 from = 0; from < sealed; from += 4 * blockDim.x) {
        u32 start = from + 4 * threadIdx.x, slot[4], count = 0, all;
#pragma unroll
        for (u32 j = 0; j < 4; j++) slot[j] = start + j < sealed ? slot_of[start + j] : NONE;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            bool judged = c.selected_only && start + j >= first && start + j < end;
            if (judged && slot[j] != NONE && !(meta[slot[j]].flags & SELECTED)) slot[j] = NONE;
            count += slot[j] != NONE;
        }
        u32 at = done + block_offset(count, all);
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            if (slot[j] != NONE) entries[at++] = c.by_block ? start + j : slot[j];
        done += all;
    }
    if (threadIdx.x == 0) l.entry_count[pool] = done;
}
