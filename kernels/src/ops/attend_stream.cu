// Decode attention at the speed of its bytes, for heads of 32 N coordinates and blocks of whole 16 tokens.
//
// A thread block is persistent: one warp copies tiles of 16 tokens (K and V) of one item after the other into a ring of
// shared memory, four warps consume them. An item is some neighbouring entries of a pool (with the first go the tail's
// tokens) and 8 QT of its queries. On the tensor cores a tile's tokens are the rows and queries the columns, so that
// eight queries cost no more than one: logits K q, then outputs V' p; softmax weights enter as two bfloat16, which
// together keep 16 bits. The four warps divide an item's entries; their sums are added in the warps' order, those of a
// pool's items in the items' order by the thread block that is last: the number of thread blocks leaves no trace.
#define WAYS 4
#define CONSUMERS (32 * WAYS)

// Copies a tile of keys (and of values) is divided into, each 16 bytes further than the last one's end: the eight rows
// that `ldmatrix` reads at once come from eight copies, and so from different banks.
#ifndef COPIES
#define COPIES 8
#endif
#define TOGETHER (16 / COPIES)

struct Stream {
    const half_t *q, *slots, *tail;
    const u32 *entries, *entry_count, *first, *committed, *ancestors;
    // [pools][query_tiles][splits][8 QT][d + 4]: sums, maximum, weight.
    float* part;
    // [rows][heads][slots + 1], or null.
    float* lse;
    half_t* out;
    // [pools][query_tiles]: items that are done; zero before and after.
    u32* done;
    u32 heads, kv_heads, pools, slot_count, tail_tokens, block_tokens, splits, split_entries, query_tiles, stages;
    // log2(e) / sqrt(d).
    float scale;
};

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
#else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
#endif
    } while (!done);
}

__device__ __forceinline__ void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

__device__ __forceinline__ void load_matrices(u32* a, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_transposed(u32* a, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ u32 transpose(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Of the tile's rows in the tensor cores' order: the token of row i.
__device__ __forceinline__ u32 token_of(u32 i) {
    return TOGETHER * (i % 8 % COPIES) + i % 8 / COPIES + (COPIES == 16 ? 8 : 8 / COPIES) * (i / 8);
}

// Bytes from the start of a tile's keys, or values.
template <int N>
__device__ __forceinline__ u32 token_at(u32 token) {
    return token / TOGETHER * (TOGETHER * 64 * N + 16) + token % TOGETHER * 64 * N;
}

template <int N>
struct Layout {
    static const u32 HALF = COPIES * (TOGETHER * 64 * N + 16);
    // Floats of a query's row in `sums`: lanes of a warp write to different banks.
    static const u32 ROW = 32 * N + 4;
    // Bytes of eight queries in shared memory.
    static const u32 QUERIES = 2 * N * 32 * 8;
};

// One item's part of the work.
struct Item {
    u32 pool, split, tile, row0, queries, entry, entries, tail, splits;
};

// The items of a thread block; a warp looks at 32 of them at once, so that empty ones cost little.
struct Walk {
    u32 next, base, live;
    // This lane's item.
    u32 count, row0, queries;
};

__device__ __forceinline__ Walk walk_start() { return {blockIdx.x, 0, 0, 0, 0, 0}; }

__device__ __forceinline__ bool walk_next(Walk& w, const Stream& a, u32 wide, Item& item) {
    u32 lane = threadIdx.x & 31, items = a.pools * a.splits * a.query_tiles, group = a.heads / a.kv_heads;
    while (!w.live) {
        if (w.next >= items) return false;
        w.base = w.next;
        w.next += 32 * gridDim.x;
        u32 i = w.base + lane * gridDim.x;
        bool live = false;
        if (i < items) {
            u32 pool = i / a.query_tiles % a.pools, seq = pool / a.kv_heads;
            w.row0 = a.first[seq];
            w.queries = (a.first[seq + 1] - w.row0) * group;
            w.count = min(a.entry_count[pool], a.slot_count);
            u32 split = i / a.query_tiles / a.pools;
            live = i % a.query_tiles * wide < w.queries && (split == 0 || split * a.split_entries < w.count);
        }
        w.live = __ballot_sync(FULL, live);
    }
    u32 from = __ffs(w.live) - 1, i = w.base + from * gridDim.x;
    w.live &= w.live - 1;
    item.tile = i % a.query_tiles;
    item.pool = i / a.query_tiles % a.pools;
    item.split = i / a.query_tiles / a.pools;
    item.row0 = __shfl_sync(FULL, w.row0, from);
    item.queries = __shfl_sync(FULL, w.queries, from);
    u32 count = __shfl_sync(FULL, w.count, from);
    item.entry = item.split * a.split_entries;
    item.entries = min(count, item.entry + a.split_entries) - item.entry;
    item.splits = max((count + a.split_entries - 1) / a.split_entries, 1u);
    // Only rows that exist lie in the tail behind the committed tokens.
    item.tail = 0;
    if (item.split == 0) item.tail = min(a.committed[item.pool / a.kv_heads] + item.queries / group, a.tail_tokens);
    return true;
}

// Each consumer has `stages` stages of its own, which it takes in turn: a place there, and whether this round is an odd one.
struct Cursor {
    u32 at, round;
};

__device__ __forceinline__ void advance(Cursor& c, u32 stages) {
    if (++c.at == stages) {
        c.at = 0;
        c.round ^= 1;
    }
}

// Where in shared memory the barriers (filled, emptied) of all stages are, their words (whether the entry exists), their data.
struct Ring {
    u32 barriers, words, data, stages;
};

// Lanes of one warp put a tile of `tokens` <= 16 into the next stage of a consumer; lane `way` has its cursor.
template <int N>
__device__ __forceinline__ void put(const Ring& ring, Cursor& c, u32 way, const half_t* k, const half_t* v, u32 tokens,
                                    bool valid) {
    const u32 D = 32 * N;
    u32 lane = threadIdx.x & 31, stage = way * ring.stages + __shfl_sync(FULL, c.at, way);
    u32 filled = ring.barriers + 16 * stage, data = ring.data + stage * 2 * Layout<N>::HALF;
    barrier_wait(filled + 8, __shfl_sync(FULL, c.round, way) ^ 1);
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(ring.words + 4 * stage), "r"((u32)valid) : "memory");
        asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(filled),
                     "r"(tokens * 4 * D)
                     : "memory");
    }
    __syncwarp();
    for (u32 i = lane; i < 2 * COPIES; i += 32) {
        u32 part = i % COPIES, from = part * TOGETHER;
        if (from < tokens) {
            const half_t* source = (i < COPIES ? k : v) + from * D;
            u32 to = data + (i < COPIES ? 0 : Layout<N>::HALF) + token_at<N>(from);
            u32 bytes = min(tokens - from, (u32)TOGETHER) * 2 * D;
#ifdef HINT
            u64 policy;
            asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                "l"(source), "r"(bytes), "r"(filled), "l"(policy)
                : "memory");
#else
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                         "l"(source), "r"(bytes), "r"(filled)
                         : "memory");
#endif
        }
    }
#else
    for (u32 i = lane; i < 32 * 4 * N; i += 32) {
        u32 token = i / (4 * N) % 16, column = i % (4 * N);
        bool of_v = i >= 16 * 4 * N;
        if (token < tokens) {
            const half_t* source = (of_v ? v : k) + token * D + 8 * column;
            u32 to = data + (of_v ? Layout<N>::HALF : 0) + token_at<N>(token) + 16 * column;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(source) : "memory");
        }
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(filled) : "memory");
    if (lane == 0) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(ring.words + 4 * stage), "r"((u32)valid) : "memory");
        barrier_arrive(filled);
    }
#endif
    if (lane == way) advance(c, ring.stages);
}

__device__ __forceinline__ u32 entry_of(const Stream& a, const Item& item, u32 i) {
    return i < item.entries ? a.entries[(u64)item.pool * a.slot_count + item.entry + i] : 0;
}

// The copying warp.
template <int N>
__device__ __forceinline__ void produce(const Stream& a, const Ring& ring, u32 wide) {
    const u32 D = 32 * N;
    u32 lane = threadIdx.x & 31;
    u64 half = (u64)a.block_tokens * D, tail_half = (u64)a.tail_tokens * D;
    Walk walk = walk_start();
    Cursor c = {0, 0};
    Item item, ahead;
    bool more = walk_next(walk, a, wide, item);
    u32 slots = more ? entry_of(a, item, lane) : 0;
    while (more) {
        // The next item's entries are read while this one's tiles go.
        bool again = walk_next(walk, a, wide, ahead);
        u32 ahead_slots = again ? entry_of(a, ahead, lane) : 0;
        for (u32 i = 0; i < item.entries; i++) {
            if (i && i % 32 == 0) slots = entry_of(a, item, i + lane);
            u32 slot = __shfl_sync(FULL, slots, i % 32);
            bool valid = slot < a.slot_count;
            const half_t* k = a.slots + ((u64)item.pool * a.slot_count + (valid ? slot : 0)) * 2 * half;
            for (u32 at = 0; at < a.block_tokens; at += 16) put<N>(ring, c, i % WAYS, k + at * D, k + half + at * D, 16, valid);
        }
        const half_t* k = a.tail + (u64)item.pool * 2 * tail_half;
        for (u32 at = 0; at < item.tail; at += 16)
            put<N>(ring, c, item.entries % WAYS, k + at * D, k + tail_half + at * D, min(item.tail - at, 16u), true);
        item = ahead;
        slots = ahead_slots;
        more = again;
    }
}

// Sums of 8 QT queries; this lane has, of each eight, two queries and two coordinates of every 16.
template <int N, int QT>
struct Sums {
    u32 q[2 * N][2];
    float acc[QT][2 * N][4];
    float max[QT][2], weight[QT][2];
    float tile_max[QT][2], tile_weight[QT][2];
};

// Two bfloat16, `low` in the lower half.
__device__ __forceinline__ u32 to_halves(float high, float low) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

__device__ __forceinline__ float column_max(float x) {
#pragma unroll
    for (int at = 4; at < 32; at *= 2) x = fmaxf(x, __shfl_xor_sync(FULL, x, at));
    return x;
}

__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
    for (int at = 4; at < 32; at *= 2) x = __fadd_rn(x, __shfl_xor_sync(FULL, x, at));
    return x;
}

// Logits to weights of one eight queries, and the factors of what was summed before. p: (token, query) pairs (row g, 2t),
// (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ __forceinline__ void soften(float* p, float scale, float* max, float* weight, float* tile_max, float* tile_weight,
                                       float* before, bool masses) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float top = __fmul_rn(column_max(fmaxf(p[j], p[2 + j])), scale);
        // -inf - -inf would be NaN: where nothing is seen, 0 does as the maximum.
        float against = top == -INF ? 0.0f : top;
        float x = exp2_of(__fmaf_rn(p[j], scale, -against)), y = exp2_of(__fmaf_rn(p[2 + j], scale, -against));
        float both = fmaxf(max[j], top), sum = __fadd_rn(x, y);
        before[j] = max[j] == both ? 1.0f : exp2_of(__fsub_rn(max[j], both));
        float add = top == both ? 1.0f : exp2_of(__fsub_rn(top, both));
        max[j] = both;
        weight[j] = __fmaf_rn(weight[j], before[j], __fmul_rn(sum, add));
        tile_max[j] = top;
        if (masses) tile_weight[j] = column_sum(sum);
        p[j] = __fmul_rn(x, add);
        p[2 + j] = __fmul_rn(y, add);
    }
}

// Adds the tile whose matrices this lane reads from k and v. Of a whole tile every query sees every token, else query j of
// eight m sees row i if sees(m, j, i), and `there` are the halves of value words that exist.
template <int N, int QT, typename Sees>
__device__ __forceinline__ void add_tile(Sums<N, QT>& f, const uint2* queries, u32 k, u32 v, float scale, bool masses, bool whole,
                                         const u32* there, Sees sees) {
    float s[QT][4], rest[QT][4];
#pragma unroll
    for (int m = 0; m < QT; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[m][i] = rest[m][i] = 0.0f;
    }
#pragma unroll
    for (int c = 0; c < 2 * N; c++) {
        u32 a[4];
        load_matrices(a, k + 32 * c);
#pragma unroll
        for (int m = 0; m < QT; m++) {
            float* to = c % 2 ? rest[m] : s[m];
            if (QT > 1) {
                uint2 q = queries[(c * QT + m) * 32];
                mma(to, a[0], a[1], a[2], a[3], q.x, q.y);
            } else {
                mma(to, a[0], a[1], a[2], a[3], f.q[c][0], f.q[c][1]);
            }
        }
    }
    u32 upper[QT][2], lower[QT][2];
    bool changed = false;
    float before[QT][2];
#pragma unroll
    for (int m = 0; m < QT; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[m][i] = __fadd_rn(s[m][i], rest[m][i]);
            if (!whole && !sees(m, i % 2, i / 2)) s[m][i] = -INF;
        }
        soften(s[m], scale, f.max[m], f.weight[m], f.tile_max[m], f.tile_weight[m], before[m], masses);
        changed = changed || before[m][0] != 1.0f || before[m][1] != 1.0f;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 bits = to_halves(s[m][2 * h + 1], s[m][2 * h]);
            upper[m][h] = transpose(bits);
            lower[m][h] = transpose(to_halves(__fsub_rn(s[m][2 * h + 1], high(bits)), __fsub_rn(s[m][2 * h], low(bits))));
        }
    }
    if (__any_sync(FULL, changed)) {
#pragma unroll
        for (int m = 0; m < QT; m++) {
#pragma unroll
            for (int c = 0; c < 2 * N; c++) {
#pragma unroll
                for (int i = 0; i < 4; i++) f.acc[m][c][i] = __fmul_rn(f.acc[m][c][i], before[m][i % 2]);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < 2 * N; c++) {
        u32 a[4];
        load_transposed(a, v + 32 * c);
        if (!whole) {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] &= there[i / 2];
        }
#pragma unroll
        for (int m = 0; m < QT; m++) {
            mma(f.acc[m][c], a[0], a[1], a[2], a[3], upper[m][0], upper[m][1]);
            mma(f.acc[m][c], a[0], a[1], a[2], a[3], lower[m][0], lower[m][1]);
        }
    }
}

// Row of q and out (and of block_lse) of a query.
__device__ __forceinline__ u32 place_of(const Stream& a, const Item& item, u32 query) {
    u32 group = a.heads / a.kv_heads, head = item.pool % a.kv_heads;
    return (item.row0 + query / group) * a.heads + head * group + query % group;
}

template <int N, int QT>
__device__ __forceinline__ void start_item(Sums<N, QT>& f, const Stream& a, const Item& item, uint2* queries) {
    u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, way = threadIdx.x >> 5;
#pragma unroll
    for (int m = 0; m < QT; m++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            f.max[m][j] = -INF;
            f.weight[m][j] = 0.0f;
        }
        u32 query = item.tile * 8 * QT + 8 * m + g;
        bool there = query < item.queries;
        const u32* q = (const u32*)(a.q + (u64)(there ? place_of(a, item, query) : 0) * 32 * N);
#pragma unroll
        for (int c = 0; c < 2 * N; c++) {
#pragma unroll
            for (int i = 0; i < 4; i++) f.acc[m][c][i] = 0.0f;
            uint2 words = make_uint2(0, 0);
            if (QT == 1 || m == way) {
                if (there) words = make_uint2(q[8 * c + t], q[8 * c + 4 + t]);
            }
            if (QT > 1 && m == way) queries[(c * QT + m) * 32] = words;
            if (QT == 1) {
                f.q[c][0] = words.x;
                f.q[c][1] = words.y;
            }
        }
    }
    if (QT > 1) consumers_sync();
}

// ln of an entry's mass out of its tiles'; maxima and weights in base 2.
__device__ __forceinline__ float add_mass(float lse, float max, float weight) {
    float other = max == -INF ? -INF : (max + log2f(weight)) * 0.693147180559945f;
    if (lse == -INF) return other;
    if (other == -INF) return lse;
    float top = fmaxf(lse, other);
    return top + logf(expf(lse - top) + expf(other - top));
}

// This warp's entries of an item.
template <int N, int QT>
__device__ __forceinline__ void consume(Sums<N, QT>& f, const Stream& a, const Item& item, const Ring& ring, Cursor& c,
                                        const uint2* queries) {
    u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, way = threadIdx.x >> 5, group = a.heads / a.kv_heads;
    u32 committed = 0, seen[QT][2];
    // Where this lane's matrix rows lie: of keys, rows of tokens; of values, too, but transposed.
    u32 row_k = token_at<N>(token_of(lane % 16)) + 16 * (lane / 16);
    u32 row_v = token_at<N>(token_of(lane % 8 + 8 * (lane / 16))) + 16 * (lane / 8 % 2) + Layout<N>::HALF;
    if (item.tail) {
        committed = a.committed[item.pool / a.kv_heads];
#pragma unroll
        for (int m = 0; m < QT; m++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 query = item.tile * 8 * QT + 8 * m + 2 * t + j;
                seen[m][j] = query < item.queries ? a.ancestors[item.row0 + query / group] : 0;
            }
        }
    }
    for (u32 i = way; i < item.entries + (item.tail != 0); i += WAYS) {
        bool of_tail = i == item.entries, valid = true;
        u32 tokens = of_tail ? item.tail : a.block_tokens;
        float lse[QT][2];
#pragma unroll
        for (int m = 0; m < QT; m++) lse[m][0] = lse[m][1] = -INF;
        for (u32 at = 0; at < tokens; at += 16) {
            u32 n = min(tokens - at, 16u), there[2];
#pragma unroll
            for (int h = 0; h < 2; h++)
                there[h] = (token_of(2 * t + 8 * h) < n ? 0xffffu : 0) | (token_of(2 * t + 1 + 8 * h) < n ? 0xffff0000u : 0);
            u32 stage = way * ring.stages + c.at, filled = ring.barriers + 16 * stage, word;
            u32 data = ring.data + stage * 2 * Layout<N>::HALF;
            barrier_wait(filled, c.round);
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(ring.words + 4 * stage) : "memory");
            valid = valid && word;
            add_tile<N, QT>(f, queries, data + row_k, data + row_v, a.scale, a.lse != 0, !of_tail, there,
                            [&](int m, int j, int h) {
                                u32 token = token_of(g + 8 * h);
                                if (token >= n) return false;
                                token += at;
                                return token < committed || (seen[m][j] >> ((token - committed) & 31) & 1);
                            });
            __syncwarp();
            if (lane == 0) barrier_arrive(filled + 8);
            advance(c, ring.stages);
            if (a.lse) {
#pragma unroll
                for (int m = 0; m < QT; m++) {
#pragma unroll
                    for (int j = 0; j < 2; j++) lse[m][j] = add_mass(lse[m][j], f.tile_max[m][j], f.tile_weight[m][j]);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < QT; m++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (!valid) f.weight[m][j] = NAN_F;
                u32 query = item.tile * 8 * QT + 8 * m + 2 * t + j;
                if (a.lse && g == 0 && query < item.queries) {
                    u64 row = (u64)place_of(a, item, query) * (a.slot_count + 1);
                    a.lse[row + (of_tail ? a.slot_count : item.entry + i)] = valid ? lse[m][j] : NAN_F;
                }
            }
        }
    }
}

// The item's sums of the warps, in their order: to `part`, or out if the pool has no other.
template <int N, int QT>
__device__ __forceinline__ void finish_item(Sums<N, QT>& f, const Stream& a, const Item& item, float* sums, float* tops,
                                            float* part) {
    const u32 D = 32 * N, ROW = Layout<N>::ROW;
    u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, way = threadIdx.x >> 5;
    float* weights = tops + 8 * WAYS;
#pragma unroll
    for (int m = 0; m < QT; m++) {
        u32 from = item.tile * 8 * QT + 8 * m;
        if (from >= item.queries) break;
        consumers_sync();
#pragma unroll
        for (int c = 0; c < 2 * N; c++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[(way * 8 + 2 * t + i % 2) * ROW + 16 * c + g + 8 * (i / 2)] = f.acc[m][c][i];
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float weight = column_sum(f.weight[m][j]);
            if (g == 0) {
                tops[way * 8 + 2 * t + j] = f.max[m][j];
                weights[way * 8 + 2 * t + j] = weight;
            }
        }
        consumers_sync();
        u32 n = min(item.queries - from, 8u);
        for (u32 i = threadIdx.x; i < n * D; i += CONSUMERS) {
            u32 j = i / D, coordinate = i % D;
            float top = fmaxf(fmaxf(tops[j], tops[8 + j]), fmaxf(tops[16 + j], tops[24 + j]));
            float against = top == -INF ? 0.0f : top, sum = 0.0f, weight = 0.0f;
#pragma unroll
            for (int w = 0; w < WAYS; w++) {
                float factor = exp2_of(__fsub_rn(tops[8 * w + j], against));
                sum = __fmaf_rn(sums[(w * 8 + j) * ROW + coordinate], factor, sum);
                weight = __fmaf_rn(weights[8 * w + j], factor, weight);
            }
            if (item.splits == 1) {
                a.out[(u64)place_of(a, item, from + j) * D + coordinate] = to_half(sum / weight);
            } else {
                float* to = part + ((u64)item.split * 8 * QT + 8 * m + j) * ROW;
                to[coordinate] = sum;
                if (coordinate == 0) *(float2*)(to + D) = make_float2(top, weight);
            }
        }
    }
}

// Adds the sums of a pool's items in their order; a warp a query.
template <int N, int QT>
__device__ __forceinline__ void join_items(const Stream& a, const Item& item, const float* part) {
    const u32 D = 32 * N, ROW = Layout<N>::ROW;
    u32 lane = threadIdx.x & 31, from = item.tile * 8 * QT, n = min(item.queries - from, 8u * QT);
    for (u32 j = threadIdx.x >> 5; j < n; j += WAYS) {
        const float* row = part + (u64)j * ROW;
        float top = -INF;
        for (u32 s = lane; s < item.splits; s += 32) top = fmaxf(top, __ldcg(row + (u64)s * 8 * QT * ROW + D));
        top = warp_max(top);
        float against = top == -INF ? 0.0f : top, weight = 0.0f, sum[N];
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = 0.0f;
        for (u32 at = 0; at < item.splits; at += 32) {
            float factor = 0.0f, own = 0.0f;
            if (at + lane < item.splits) {
                const float* p = row + (u64)(at + lane) * 8 * QT * ROW + D;
                factor = exp2_of(__fsub_rn(__ldcg(p), against));
                own = __fmul_rn(__ldcg(p + 1), factor);
            }
            u32 count = min(item.splits - at, 32u);
#pragma unroll 8
            for (u32 s = 0; s < count; s++) {
                float by = __shfl_sync(FULL, factor, s);
                weight = __fadd_rn(weight, __shfl_sync(FULL, own, s));
                const float* p = row + (u64)(at + s) * 8 * QT * ROW + lane;
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] = __fmaf_rn(__ldcg(p + 32 * i), by, sum[i]);
            }
        }
        half_t* to = a.out + (u64)place_of(a, item, from + j) * D + lane;
#pragma unroll
        for (int i = 0; i < N; i++) to[32 * i] = to_half(sum[i] / weight);
    }
}

template <int N, int QT>
__device__ void attend_stream(const Stream& a) {
    extern __shared__ uint4 room[];
    const u32 ROW = Layout<N>::ROW;
    // Sums, maxima and weights, queries, a flag; then words, barriers and data of the ring.
    float* sums = (float*)room;
    float* tops = sums + WAYS * 8 * ROW;
    uint2* queries = (uint2*)(tops + 16 * WAYS) + (threadIdx.x & 31);
    u32* last = (u32*)(tops + 16 * WAYS) + (QT > 1 ? QT * Layout<N>::QUERIES / 4 : 0);
    u32 stages = WAYS * a.stages, warp = threadIdx.x >> 5;
    Ring ring;
    ring.stages = a.stages;
    ring.barriers = shared_address(last + 4);
    ring.words = ring.barriers + 16 * stages;
    ring.data = ring.words + (4 * stages + 15) / 16 * 16;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < stages; i++) {
#if __CUDA_ARCH__ >= 900
            barrier_init(ring.barriers + 16 * i, 1);
#else
            barrier_init(ring.barriers + 16 * i, 33);
#endif
            barrier_init(ring.barriers + 16 * i + 8, 1);
        }
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
    if (warp == WAYS) return produce<N>(a, ring, 8 * QT);
    Walk walk = walk_start();
    Cursor c = {0, 0};
    Item item;
    Sums<N, QT> f;
    while (walk_next(walk, a, 8 * QT, item)) {
        start_item(f, a, item, queries);
        consume(f, a, item, ring, c, queries);
        u32 place = item.pool * a.query_tiles + item.tile;
        float* part = a.part + (u64)place * a.splits * 8 * QT * ROW;
        finish_item(f, a, item, sums, tops, part);
        if (item.splits == 1) continue;
        __threadfence();
        consumers_sync();
        if (threadIdx.x == 0) {
            u32 before = atomicAdd(a.done + place, 1);
            *last = before + 1 == item.splits;
            if (*last) a.done[place] = 0;
        }
        consumers_sync();
        if (!*last) continue;
        __threadfence();
        join_items<N, QT>(a, item, part);
    }
}

#ifndef RESIDENT
#define RESIDENT 2
#endif
#define ATTEND_STREAM(N, QT)                                                                             \
    extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, QT == 1 ? RESIDENT : QT == 2 ? 2 : 1) attend_stream_##N##_##QT(const Stream a) { \
        attend_stream<N, QT>(a);                                                                         \
    }
#define ATTEND_STREAMS(N) ATTEND_STREAM(N, 1) ATTEND_STREAM(N, 2) ATTEND_STREAM(N, 4)
ATTEND_STREAMS(1)
ATTEND_STREAMS(2)
ATTEND_STREAMS(3)
ATTEND_STREAMS(4)
