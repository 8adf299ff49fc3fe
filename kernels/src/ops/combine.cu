#define GROUP_MAX 0
#define GROUP_MEAN 1
#define GROUP_SOFTMAX 2

// Most queries of a pool.
#define MOST_QUERIES 512

// The sum of exp(x - top) over finite numbers, and how many are +∞. NaN and −∞ are no part of it.
struct Mass {
    float top, sum, infinite;
};

// Reading eight numbers at a time keeps as many loads in flight and rescales the sum once for all.
__device__ Mass mass_of(const float* x, u32 from, u32 end, u32 step) {
    Mass m = {-INF, 0.0f, 0.0f};
    for (u32 b = from; b < end; b += 8 * step) {
        float part[8], top = m.top;
#pragma unroll
        for (int k = 0; k < 8; k++) part[k] = b + k * step < end ? x[b + k * step] : -INF;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (part[k] == INF) m.infinite += 1.0f;
            if (!(part[k] < INF)) part[k] = -INF;
            top = fmaxf(top, part[k]);
        }
        if (top == -INF) continue;
        m.sum *= expf(m.top - top);
        m.top = top;
#pragma unroll
        for (int k = 0; k < 8; k++) m.sum += expf(part[k] - top);
    }
    return m;
}

__device__ __forceinline__ Mass mass_of_warp(Mass m) {
    float top = warp_max(m.top);
    float sum = top == -INF ? 0.0f : m.sum * expf(m.top - top);
    return {top, warp_sum(sum), warp_sum(m.infinite)};
}

// `out` with one more query's logit.
__device__ __forceinline__ float combined(float out, float s, u32 group, float each, float top, float factor) {
    if (group == GROUP_MAX) return out >= s || isnan(out) ? out : s;
    if (group == GROUP_MEAN) return out + s * each;
    // Against a top of +∞ all mass is that of +∞.
    float e = top == INF ? (isnan(s) ? s : s == INF ? 1.0f : 0.0f) : expf(s - top);
    return out + e * factor;
}

// The logits of a pool's queries to one score a block; resident [pools][queries], ln of the mass beside the candidates, or
// null. One thread block of 16 warps a pool.
extern "C" __global__ void __launch_bounds__(512)
    score_combine(const float* logits, const float* resident, const u32* control, u32 kv_heads, u32 blocks, u32 queries,
                  u32 group, float* scores) {
    __shared__ Mass masses[16];
    __shared__ float tops[MOST_QUERIES], factors[MOST_QUERIES];
    u32 pool = blockIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    SeqControl c = seq_control(control, pool / kv_heads);
    u32 count = query_count(c);
    if (count == 0 || candidate_count(c) == 0) return;
    const float* rows = logits + (u64)pool * queries * blocks;
    if (group == GROUP_SOFTMAX) {
        // As many warps a query as divide 16, so that all are busy.
        u32 share = count > 8 ? 1 : count > 4 ? 2 : count > 2 ? 4 : count > 1 ? 8 : 16;
        u32 together = 16 / share;
        for (u32 start = 0; start < count; start += together) {
            u32 i = start + warp / share;
            if (i < count) {
                Mass m = mass_of(rows + (u64)i * blocks, c.first + (warp % share) * 32 + lane, c.end, 32 * share);
                m = mass_of_warp(m);
                if (lane == 0) masses[warp] = m;
            }
            __syncthreads();
            if (i < count && warp % share == 0 && lane == 0) {
                float own = resident ? resident[(u64)pool * queries + i] : -INF;
                float top = own < INF ? own : -INF, sum = 0.0f, infinite = own == INF ? 1.0f : 0.0f;
                for (u32 k = 0; k < share; k++) {
                    top = fmaxf(top, masses[warp + k].top);
                    infinite += masses[warp + k].infinite;
                }
                if (infinite == 0.0f && top > -INF) {
                    for (u32 k = 0; k < share; k++) sum += masses[warp + k].sum * expf(masses[warp + k].top - top);
                    sum += expf(own - top);
                } else {
                    top = INF;
                    sum = fmaxf(infinite, 1.0f);
                }
                tops[i] = top;
                factors[i] = 1.0f / sum;
            }
            __syncthreads();
        }
    }
    float each = 1.0f / (float)count;
    for (u32 b = c.first + threadIdx.x; b < c.end; b += blockDim.x) {
        float out = group == GROUP_MAX ? -INF : 0.0f;
        for (u32 from = 0; from < count; from += 8) {
            // All loads before any use.
            float part[8];
#pragma unroll
            for (u32 i = 0; i < 8; i++) part[i] = from + i < count ? rows[(u64)(from + i) * blocks + b] : 0.0f;
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                if (from + i < count) out = combined(out, part[i], group, each, tops[from + i], factors[from + i]);
            }
        }
        scores[(u64)pool * blocks + b] = out;
    }
}
