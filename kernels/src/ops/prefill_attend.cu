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
