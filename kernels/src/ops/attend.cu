// Running softmax sums of the queries of one KV head over tiles of at most 32 tokens. A warp has QW queries; in the
// inner products a lane is a token, in the weighted sums of values it is a coordinate (of every 32).
#define QW 4
#define TILE 32

template <int N, int WARPS>
struct Tile {
    float q[WARPS * QW][32 * N];
    // Words of two keys' coordinates; an odd distance, so that lanes read different banks.
    u32 k[TILE][16 * N + 1];
    half_t v[TILE][32 * N];
};

template <int N>
struct Running {
    float acc[QW][N], max[QW], weight[QW];
    // Of the last tile.
    float tile_max[QW], tile_weight[QW];
};

template <int N>
__device__ __forceinline__ void start(Running<N>& r) {
#pragma unroll
    for (int j = 0; j < QW; j++) {
        r.max[j] = -INF;
        r.weight[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) r.acc[j][i] = 0.0f;
    }
}

// Queries first .. of `count`; query i is head `head * group + i % group` of row `row0 + i / group`.
template <int N, int WARPS>
__device__ __forceinline__ void load_queries(Tile<N, WARPS>& tile, const half_t* q, u32 row0, u32 head, u32 group,
                                             u32 heads, u32 d, u32 first, u32 count) {
    for (u32 i = threadIdx.x; i < WARPS * QW * 32 * N; i += blockDim.x) {
        u32 j = i / (32 * N), c = i % (32 * N), query = first + j;
        float x = 0.0f;
        if (query < count && c < d)
            x = to_float(q[((u64)(row0 + query / group) * heads + head * group + query % group) * d + c]);
        tile.q[j][c] = x;
    }
}

// `n` keys and values that lie `stride` elements apart, zeros behind them.
template <int N, int WARPS>
__device__ __forceinline__ void load_tile(Tile<N, WARPS>& tile, const half_t* k, const half_t* v, u64 stride, u32 n,
                                          u32 d) {
    if (d % 8 == 0) {
        u32 parts = d / 8;
        for (u32 i = threadIdx.x; i < TILE * 4 * N; i += blockDim.x) {
            u32 t = i / (4 * N), c = i % (4 * N);
            bool there = t < n && c < parts;
            uint4 x = make_uint4(0, 0, 0, 0), y = x;
            if (there) {
                x = *(const uint4*)(k + t * stride + 8 * c);
                y = *(const uint4*)(v + t * stride + 8 * c);
            }
            u32* to = &tile.k[t][4 * c];
            to[0] = x.x;
            to[1] = x.y;
            to[2] = x.z;
            to[3] = x.w;
            *(uint4*)&tile.v[t][8 * c] = y;
        }
    } else {
        for (u32 i = threadIdx.x; i < TILE * 32 * N; i += blockDim.x) {
            u32 t = i / (32 * N), c = i % (32 * N);
            bool there = t < n && c < d;
            ((half_t*)tile.k[t])[c] = there ? k[t * stride + c] : 0;
            tile.v[t][c] = there ? v[t * stride + c] : 0;
        }
    }
}

// Adds the loaded tile; lane t's `sees[j]` says whether query j of this warp sees token t.
template <int N, int WARPS>
__device__ __forceinline__ void step(Running<N>& r, const Tile<N, WARPS>& tile, const bool* sees, u32 n, float scale) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float s[QW];
#pragma unroll
    for (int j = 0; j < QW; j++) s[j] = 0.0f;
#pragma unroll 4
    for (int c = 0; c < 16 * N; c++) {
        u32 word = tile.k[lane][c];
        float k0 = low(word), k1 = high(word);
#pragma unroll
        for (int j = 0; j < QW; j++) {
            float2 q = *(const float2*)&tile.q[warp * QW + j][2 * c];
            s[j] += q.x * k0;
            s[j] += q.y * k1;
        }
    }
    float p[QW], add[QW];
#pragma unroll
    for (int j = 0; j < QW; j++) {
        float x = sees[j] ? s[j] * scale : -INF;
        float top = warp_max(x);
        // -inf - -inf would be NaN: where nothing is seen, 0 does as the maximum.
        p[j] = sees[j] ? expf(x - (top == -INF ? 0.0f : top)) : 0.0f;
        float sum = warp_sum(p[j]);
        r.tile_max[j] = top;
        r.tile_weight[j] = sum;
        float both = fmaxf(r.max[j], top);
        float before = r.max[j] == both ? 1.0f : expf(r.max[j] - both);
        add[j] = top == both ? 1.0f : expf(top - both);
        r.max[j] = both;
        r.weight[j] = r.weight[j] * before + sum * add[j];
        p[j] *= add[j];
#pragma unroll
        for (int i = 0; i < N; i++) r.acc[j][i] *= before;
    }
    for (u32 t = 0; t < n; t++) {
        float v[N];
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = to_float(tile.v[t][lane + 32 * i]);
#pragma unroll
        for (int j = 0; j < QW; j++) {
            float w = __shfl_sync(FULL, p[j], t);
#pragma unroll
            for (int i = 0; i < N; i++) r.acc[j][i] += w * v[i];
        }
    }
}

// Of one entry: merges ln sums of its tiles.
__device__ __forceinline__ float merge_lse(float lse, float max, float weight) {
    float other = max + logf(weight);
    if (lse == -INF) return other;
    if (other == -INF) return lse;
    float top = fmaxf(lse, other);
    return top + logf(expf(lse - top) + expf(other - top));
}

struct Attend {
    const half_t *q, *slots, *tail;
    const u32 *entries, *entry_count, *first, *committed, *ancestors;
    // [rows][heads][splits][d + 2]: sums, maximum, weight.
    float* part;
    // [rows][heads][slots + 1], or null.
    float* lse;
    u32 heads, kv_heads, slot_count, tail_tokens, block_tokens, d, splits, split_entries;
    float scale;
};

// One thread block: a pool, some of its entries (the last split: the tail), at most 16 of its queries.
template <int N>
__device__ void attend_part(const Attend& a) {
    const int WARPS = 4;
    __shared__ Tile<N, WARPS> tile;
    u32 pool = blockIdx.x, split = blockIdx.y, lane = threadIdx.x & 31;
    u32 seq = pool / a.kv_heads, head = pool % a.kv_heads, group = a.heads / a.kv_heads;
    u32 row0 = a.first[seq], rows = a.first[seq + 1] - row0, queries = rows * group;
    u32 from = blockIdx.z * WARPS * QW;
    if (from >= queries) return;
    bool of_tail = split + 1 == a.splits;
    u32 count = min(a.entry_count[pool], a.slot_count);
    u32 entry = of_tail ? 0 : split * a.split_entries;
    u32 end = of_tail ? 1 : min(count, entry + a.split_entries);
    u32 mine = from + (threadIdx.x >> 5) * QW, committed = a.committed[seq];
    Running<N> run;
    start(run);
    load_queries<N, WARPS>(tile, a.q, row0, head, group, a.heads, a.d, from, queries);
    for (; entry < end; entry++) {
        u32 tokens = of_tail ? min(committed + rows, a.tail_tokens) : a.block_tokens;
        u64 half = (u64)(of_tail ? a.tail_tokens : a.block_tokens) * a.d;
        const half_t* k;
        bool valid = true;
        if (of_tail) {
            k = a.tail + (u64)pool * 2 * half;
        } else {
            u32 slot = a.entries[(u64)pool * a.slot_count + entry];
            valid = slot < a.slot_count;
            k = a.slots + ((u64)pool * a.slot_count + (valid ? slot : 0)) * 2 * half;
        }
        float lse[QW];
#pragma unroll
        for (int j = 0; j < QW; j++) lse[j] = -INF;
        for (u32 at = 0; at < tokens; at += TILE) {
            u32 n = min(tokens - at, (u32)TILE);
            __syncthreads();
            load_tile<N, WARPS>(tile, k + (u64)at * a.d, k + half + (u64)at * a.d, a.d, n, a.d);
            __syncthreads();
            bool sees[QW];
            u32 token = at + lane;
#pragma unroll
            for (int j = 0; j < QW; j++) {
                sees[j] = lane < n;
                if (of_tail && token >= committed && mine + j < queries)
                    sees[j] = sees[j] && (a.ancestors[row0 + (mine + j) / group] >> (token - committed) & 1);
            }
            step<N, WARPS>(run, tile, sees, n, a.scale);
#pragma unroll
            for (int j = 0; j < QW; j++) lse[j] = merge_lse(lse[j], run.tile_max[j], run.tile_weight[j]);
        }
#pragma unroll
        for (int j = 0; j < QW; j++) {
            if (!valid) run.weight[j] = NAN_F;
            u32 query = mine + j;
            if (a.lse && lane == 0 && query < queries) {
                u64 place = (u64)(row0 + query / group) * a.heads + head * group + query % group;
                a.lse[place * (a.slot_count + 1) + (of_tail ? a.slot_count : entry)] = valid ? lse[j] : NAN_F;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < QW; j++) {
        u32 query = mine + j;
        if (query >= queries) continue;
        u64 place = (u64)(row0 + query / group) * a.heads + head * group + query % group;
        float* to = a.part + (place * a.splits + split) * (a.d + 2);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + 32 * i < a.d) to[lane + 32 * i] = run.acc[j][i];
        if (lane == 0) {
            to[a.d] = run.max[j];
            to[a.d + 1] = run.weight[j];
        }
    }
}

#define ATTEND(N)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) attend_part_##N(const Attend a) { attend_part<N>(a); }
ATTEND(1)
ATTEND(2)
ATTEND(3)
ATTEND(4)

// One thread block of 128 a (row, head): adds the splits in their order; d <= 128.
extern "C" __global__ void attend_merge(const float* part, u32 splits, u32 d, half_t* out) {
    __shared__ float room[33], factors[128], weights[128];
    u64 place = blockIdx.x;
    const float* from = part + place * splits * (d + 2);
    float top = -INF;
    for (u32 s = threadIdx.x; s < splits; s += 128) top = fmaxf(top, from[(u64)s * (d + 2) + d]);
    top = block_max(top, room);
    float against = top == -INF ? 0.0f : top, sum = 0.0f, weight = 0.0f;
    for (u32 at = 0; at < splits; at += 128) {
        u32 n = min(splits - at, 128u), i = threadIdx.x;
        __syncthreads();
        if (i < n) {
            const float* p = from + (u64)(at + i) * (d + 2) + d;
            factors[i] = expf(p[0] - against);
            weights[i] = p[1] * factors[i];
        }
        __syncthreads();
#pragma unroll 8
        for (u32 s = 0; s < n; s++) {
            weight += weights[s];
            if (i < d) sum += from[(u64)(at + s) * (d + 2) + i] * factors[s];
        }
    }
    if (threadIdx.x < d) out[place * d + threadIdx.x] = to_half(sum / weight);
}
