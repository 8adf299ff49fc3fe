// Top-K, cap and eviction of a pool, decision for decision core's select.rs; which slot a block gets is nobody's business.
//
// An evictor is KEEP, an expression of m (SlotMeta), now and seed: how much the block is worth keeping; or, with QUEUE
// defined, three functions:
//
//   // The own word of a block that comes in as the pool's number-th (from 0; those of the prefill by block id).
//   __device__ u32 queue_admit(u32 number);
//   // The own word of a resident block that was selected.
//   __device__ u32 queue_touch(u32 own);
//   // All threads of a block call it together: leaves[i] becomes 1 for exactly `need` of the `count` blocks that may
//   // leave, 0 for the others; by block id they sit in slots[i]. Words of slots and p.state[1 .. 4] are its own.
//   __device__ void queue_evict(const Pool& p, const u32* slots, u32* leaves, u32 count, u32 need);

#define THREADS 256

// Neighbouring blocks that a thread looks at.
#define EACH 4

// Ranks by (score descending, block id ascending): smaller is better, NaN last.
__device__ __forceinline__ u32 rank_key(float score) { return isnan(score) ? NONE : ~ascending(score); }

__device__ __forceinline__ u32 own_word(u32 number) {
#ifdef QUEUE
    return queue_admit(number);
#else
    return 0;
#endif
}

#ifndef QUEUE
__device__ __forceinline__ float worth(const SlotMeta& m, u32 now, u64 seed) { return KEEP; }
#endif

// Marks `need` of the `count` blocks in slots[], which are sorted by block id, in marks[].
__device__ __forceinline__ void choose_victims(const Pool& p, const u32* slots, u32* marks, u32 count, u32 need) {
#ifdef QUEUE
    queue_evict(p, slots, marks, count, need);
    __syncthreads();
#else
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        float keep = worth(p.meta[slots[i]], p.now, p.seed);
        // A NaN opinion is no opinion: it counts as "keep least".
        marks[i] = ascending(isnan(keep) ? -INF : keep);
    }
    __syncthreads();
    u32 below, last = nth_smallest([&](u32 i) { return marks[i]; }, count, need, below);
    u32 tied = 0;
    for (u32 from = 0; from < count; from += blockDim.x) {
        u32 i = from + threadIdx.x;
        u32 key = i < count ? marks[i] : NONE;
        u32 all, before = block_rank(i < count && key == last, all);
        if (i < count) marks[i] = key < last || (key == last && tied + before < need - below);
        tied += all;
    }
    __syncthreads();
#endif
}

// Takes `need` of the `count` blocks in slots[] out of the pool; their slots become slots[0 .. need]. Returns how many of
// them were fetched for nothing.
__device__ __forceinline__ u32 evict(const Pool& p, u32* slot_of, u32* slots, u32* marks, u32 count, u32 need) {
    choose_victims(p, slots, marks, count, need);
    u32 done = 0, wasted = 0;
    for (u32 from = 0; from < count; from += blockDim.x) {
        u32 i = from + threadIdx.x;
        u32 slot = i < count ? slots[i] : NONE;
        bool leaves = i < count && marks[i];
        u32 all, rank = block_rank(leaves, all);
        if (leaves) {
            slots[done + rank] = slot;
            slot_of[p.meta[slot].block] = NONE;
            wasted += p.meta[slot].flags & UNUSED ? 1 : 0;
        }
        done += all;
    }
    return block_total(wasted);
}

// Appends free slots to slots[at ..], at most `most`; returns how many.
__device__ __forceinline__ u32 free_slots(const Pool& p, u32* slots, u32 at, u32 most) {
    u32 found = 0;
    for (u32 from = 0; from < p.slots && found < most; from += blockDim.x) {
        u32 slot = from + threadIdx.x;
        bool free = slot < p.slots && p.meta[slot].block == NONE;
        u32 all, rank = found + block_rank(free, all);
        if (free && rank < most) slots[at + rank] = slot;
        found += all;
    }
    return min(found, most);
}

// What select_blocks knows of P once it has walked over the candidates.
struct Walk {
    u32 misses, leaving, nans;
};

// Marks P ∩ R, and lists by block id what of P is missing (key, block) and which residents may leave (slot).
__device__ __forceinline__ Walk walk(const Chain& c, const Pool& p, const SeqControl& seq, const float* scores,
                                     const u32* slot_of, u32* miss_key, u32* miss_block, u32* leaving) {
    u32 n = candidate_count(seq), below = 0, last = NONE;
    bool all_wanted = n <= c.k;
    auto key_of = [&](u32 i) { return rank_key(scores[i]); };
    if (!all_wanted) last = nth_smallest(key_of, n, c.k, below);
    u32 ties = c.k - below, tied = 0, nans = 0;
    Walk w = {0, 0, 0};
    for (u32 from = 0; from < n; from += EACH * blockDim.x) {
        u32 start = from + EACH * threadIdx.x, key[EACH], slot[EACH], own_ties = 0, all;
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            bool in = start + j < n;
            key[j] = in ? key_of(start + j) : NONE;
            slot[j] = in ? slot_of[seq.first + start + j] : NONE;
            nans += in && key[j] == NONE;
            own_ties += in && key[j] == last;
        }
        u32 before = tied + block_offset(own_ties, all), wanted = 0, listed = 0;
        tied += all;
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            bool in = start + j < n, tie = in && key[j] == last;
            bool is = in && (all_wanted || key[j] < last || (tie && before < ties));
            before += tie;
            wanted |= (u32)is << j;
            // Two counts in a word: what is missing, and what may leave.
            if (in && is == (slot[j] == NONE)) listed += is ? 1 : 1 << 16;
        }
        u32 at = block_offset(listed, all), miss = w.misses + (at & 0xffff), leave = w.leaving + (at >> 16);
        w.misses += all & 0xffff;
        w.leaving += all >> 16;
#pragma unroll
        for (u32 j = 0; j < EACH; j++) {
            bool is = wanted >> j & 1;
            if (is && slot[j] == NONE) {
                miss_key[miss] = key[j];
                miss_block[miss++] = seq.first + start + j;
            }
            if (slot[j] == NONE) continue;
            SlotMeta& m = p.meta[slot[j]];
            if (is) {
                m.last_selected = p.now;
                m.selections += 1;
                m.flags |= SELECTED;
#ifdef QUEUE
                m.own = queue_touch(m.own);
#endif
            } else {
                m.flags &= ~SELECTED;
                leaving[leave++] = slot[j];
            }
        }
    }
    w.nans = block_total(nans);
    return w;
}

// Admits the `admissions` best of the missing blocks to slots[], and orders their copies.
__device__ __forceinline__ void admit(const Chain& c, const Pool& p, u32 layer, u32 pool, u32* slot_of, const u32* miss_key,
                                      const u32* miss_block, const u32* slots, u32 misses, u32 admissions) {
    __shared__ u32 list;
    Move* moves = c.moves + (u64)layer * c.pools * c.cap;
    u32 below = 0, last = NONE, tied = 0, done = 0, number = p.state[0];
    bool all_come = admissions == misses;
    if (!all_come) last = nth_smallest([&](u32 i) { return miss_key[i]; }, misses, admissions, below);
    if (threadIdx.x == 0 && !c.by_block) list = atomicAdd(c.move_count + layer, admissions);
    __syncthreads();
    for (u32 from = 0; from < misses; from += blockDim.x) {
        u32 i = from + threadIdx.x;
        u32 key = i < misses ? miss_key[i] : NONE;
        u32 all, before = block_rank(i < misses && key == last, all);
        bool comes = i < misses && (all_come || key < last || (key == last && tied + before < admissions - below));
        tied += all;
        u32 rank = done + block_rank(comes, all);
        done += all;
        if (!comes) continue;
        u32 order = 0;
#ifdef QUEUE
        // Blocks come in best first.
        for (u32 j = 0; j < misses; j++) order += miss_key[j] < key || (miss_key[j] == key && j < i);
#endif
        u32 block = miss_block[i], slot = slots[rank];
        slot_of[block] = slot;
        p.meta[slot] = {block, p.now, p.now, p.now, 1, 0.0f, SELECTED | UNUSED, own_word(number + order)};
        if (!c.by_block) {
            u64 to = (u64)c.layers[layer].slots + ((u64)pool * c.slots + slot) * (4 * TOKENS * HEAD_DIM);
            moves[list + rank] = {chunk_of(c, layer, pool, block), to};
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) p.state[0] = number + admissions;
}

// One thread block a pool. Dynamic shared memory: 4 words a slot.
extern "C" __global__ void __launch_bounds__(THREADS, 4) select_blocks(const Chain c, const Layer l, u32 layer) {
    extern __shared__ u32 lists[];
    u32 *miss_key = lists, *miss_block = lists + c.pool_slots;
    u32 *slots = lists + 2 * c.pool_slots, *marks = lists + 3 * c.pool_slots;
    u32 pool = blockIdx.x;
    SeqControl seq = seq_control(c.control, pool / c.kv_heads);
    Pool p = pool_of(c, layer, pool);
    Counts* counts = counts_of(c, layer, pool);
    Counts out = {0, 0, 0, 0, 0, 0, 0, seq.rows ? counts->attended : 0, 0, 0};
    if (seq.rows) {
        u32* slot_of = c.slot_of + ((u64)layer * c.pools + pool) * c.blocks;
        const float* scores = c.scores + (u64)pool * c.blocks + seq.first;
        Walk w = walk(c, p, seq, scores, slot_of, miss_key, miss_block, slots);
        __syncthreads();
        u32 admissions = min(c.cap, w.misses);
        if (admissions) {
            u32 free = free_slots(p, marks, 0, admissions);
            u32 need = min(admissions - free, w.leaving);
            admissions = free + need;
            out.evicted = need;
            if (need) out.wasted = evict(p, slot_of, slots, marks, w.leaving, need);
            // A victim's slot is not free in the histories until the newcomer is in it.
            free_slots(p, slots, need, free);
            __syncthreads();
            if (admissions) admit(c, p, layer, pool, slot_of, miss_key, miss_block, slots, w.misses, admissions);
        }
        __syncthreads();
        renew_entries(c, l, layer, pool, seq.first, seq.end, seq.blocks);
        out.wanted = min(c.k, candidate_count(seq));
        out.hits = out.wanted - w.misses;
        out.fetched = admissions;
        out.dropped = w.misses - admissions;
        out.nans = w.nans;
    }
    if (threadIdx.x == 0) *counts = out;
}
