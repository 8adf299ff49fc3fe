// Causal attention of a prompt's rows; uses what attend.cu defines.
// One thread block: 32 queries (neighbouring rows and all heads of the group) of one KV head.
struct Prefill {
    const half_t *q, *k, *v;
    half_t* out;
    u32 heads, kv_heads, d, first, rows;
    float scale;
};

template <int N>
__device__ void prefill(const Prefill& a) {
    const int WARPS = 8;
    __shared__ Tile<N, WARPS> tile;
    u32 head = blockIdx.y, group = a.heads / a.kv_heads, lane = threadIdx.x & 31;
    u32 queries = a.rows * group;
    // The longest rows first: they take longest.
    u32 from = (gridDim.x - 1 - blockIdx.x) * WARPS * QW;
    u32 last = min(from + WARPS * QW, queries) - 1;
    u32 tokens = a.first + last / group + 1, sure = a.first + from / group + 1;
    u32 mine = from + (threadIdx.x >> 5) * QW;
    u64 stride = (u64)a.kv_heads * a.d;
    Running<N> run;
    start(run);
    load_queries<N, WARPS>(tile, a.q, 0, head, group, a.heads, a.d, from, queries);
    for (u32 at = 0; at < tokens; at += TILE) {
        u32 n = min(tokens - at, (u32)TILE);
        u64 place = at * stride + head * a.d;
        __syncthreads();
        load_tile<N, WARPS>(tile, a.k + place, a.v + place, stride, n, a.d);
        __syncthreads();
        bool sees[QW];
#pragma unroll
        for (int j = 0; j < QW; j++)
            sees[j] = lane < n && (at + TILE <= sure || at + lane <= a.first + (mine + j) / group);
        step<N, WARPS>(run, tile, sees, n, a.scale);
    }
#pragma unroll
    for (int j = 0; j < QW; j++) {
        u32 query = mine + j;
        if (query >= queries) continue;
        half_t* to = a.out + ((u64)(query / group) * a.heads + head * group + query % group) * a.d;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + 32 * i < a.d) to[lane + 32 * i] = to_half(run.acc[j][i] / run.weight[j]);
    }
}

#define PREFILL(N)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) prefill_##N(const Prefill a) { prefill<N>(a); }
PREFILL(1)
PREFILL(2)
PREFILL(3)
PREFILL(4)

// The same on tensor cores, for heads of 32 N coordinates: a warp has 16 queries.
template <int N>
__device__ void prefill_mma(const Prefill& a) {
    const int D = 32 * N;
    u32 head = blockIdx.y, group = a.heads / a.kv_heads, queries = a.rows * group;
    u32 lane = threadIdx.x & 31, g = lane >> 2;
    u32 from = ((gridDim.x - 1 - blockIdx.x) * (blockDim.x >> 5) + (threadIdx.x >> 5)) * 16;
    if (from >= queries) return;
    u32 last = min(from + 16, queries) - 1, end[2];
    u32 tokens = a.first + last / group + 1;
    Queries16 of;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 query = from + g + 8 * h;
        of.there[h] = query < queries;
        of.place[h] = query / group * a.heads + head * group + query % group;
        end[h] = a.first + query / group + 1;
    }
    Fragments<N> f;
    start16<N>(f, a.q, of);
    u64 stride = (u64)a.kv_heads * D;
    for (u32 at = 0; at < tokens; at += 16) {
        u64 place = at * stride + head * D;
        step16<N>(f, a.k + place, a.v + place, stride, min(tokens - at, 16u), a.scale,
                  [&](int h, u32 token) { return at + token < end[h]; });
    }
#pragma unroll
    for (int c = 0; c < 4 * N; c++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int h = e >> 1;
            if (of.there[h]) a.out[(u64)of.place[h] * D + coordinate_of(c, e & 1)] = to_half(f.acc[c][e] / f.weight[h]);
        }
    }
}

#define PREFILL_MMA(N)                                                                                \
    extern "C" __global__ void __launch_bounds__(128) prefill_mma_##N(const Prefill a) { prefill_mma<N>(a); }
PREFILL_MMA(1)
PREFILL_MMA(2)
PREFILL_MMA(3)
PREFILL_MMA(4)
