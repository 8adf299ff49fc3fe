// The candidates and queries of one sequence's pools.
struct Candidates {
    u32 first, count, queries;
};

// Stored forms, as score.rs numbers them.
#define F32 0
#define BF16 1
#define AFFINE 2
#define NORMAL 3

#define MAX 0
#define LOG_SUM_EXP 1
#define SUM 2

struct Form {
    u32 storage, bits, vectors, dim, reduce, vector_bytes;
    // Coordinates of the first part, and bytes of scales, of affine codes.
    u32 upper, scale_bytes;
    // Distance of levels of normal codes.
    float level_step;
};

__device__ __forceinline__ float bf16_at(const u8* p) { return to_float((half_t)(p[0] | p[1] << 8)); }

__device__ __forceinline__ u32 code_at(const u8* codes, u32 bits, u32 i) {
    u32 at = i * bits;
    return codes[at >> 3] >> (at & 7) & ((1u << bits) - 1);
}

// Coordinate i of a stored vector. Products and sums are rounded one by one, as the reference codec does.
__device__ __forceinline__ float coordinate(const Form& f, const u8* p, const float* scales, u32 i) {
    switch (f.storage) {
        case F32: return __uint_as_float(p[4 * i] | p[4 * i + 1] << 8 | p[4 * i + 2] << 16 | (u32)p[4 * i + 3] << 24);
        case BF16: return bf16_at(p + 2 * i);
        case AFFINE: {
            const u8* line = i < f.upper ? p : p + f.scale_bytes - 4;
            float code = (float)code_at(p + f.scale_bytes, f.bits, i);
            return __fadd_rn(bf16_at(line), __fmul_rn(bf16_at(line + 2), code));
        }
        default: {
            float level = ((float)code_at(p + 1, f.bits, i) - (float)((1u << f.bits) - 1) / 2.0f) * f.level_step;
            return __fmul_rn(scales[p[0]], level);
        }
    }
}

#define QUERIES 8

// scores [pools][queries][line]; lifted [pools][queries][dim], queries a multiple of 8. One warp a block and 8 queries.
extern "C" __global__ void __launch_bounds__(256)
    score_blocks(const Form f, const u8* summaries, const float* lifted, const float* bias, const float* scales,
                 const Candidates* of, u32 kv_heads, u32 blocks, u32 queries, u32 line, float* scores) {
    u32 pool = blockIdx.y, from = blockIdx.z * QUERIES, lane = threadIdx.x & 31;
    Candidates c = of[pool / kv_heads];
    u32 b = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (b >= c.count || from >= c.queries) return;
    const u8* p = summaries + ((u64)pool * blocks + c.first + b) * f.vectors * f.vector_bytes;
    const float* q = lifted + ((u64)pool * queries + from) * f.dim;
    float out[QUERIES], sum[QUERIES];
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
        out[j] = f.reduce == SUM ? 0.0f : -INF;
        sum[j] = 0.0f;
    }
    for (u32 v = 0; v < f.vectors; v++, p += f.vector_bytes) {
        float dot[QUERIES];
#pragma unroll
        for (int j = 0; j < QUERIES; j++) dot[j] = 0.0f;
        for (u32 i = lane; i < f.dim; i += 32) {
            float x = coordinate(f, p, scales, i);
#pragma unroll
            for (int j = 0; j < QUERIES; j++) dot[j] += x * q[(u64)j * f.dim + i];
        }
#pragma unroll
        for (int j = 0; j < QUERIES; j++) {
            float x = warp_sum(dot[j]) + bias[(u64)pool * queries + from + j];
            if (f.vectors == 1) {
                out[j] = x;
            } else if (f.reduce == SUM) {
                out[j] += x;
            } else if (f.reduce == MAX) {
                out[j] = out[j] >= x || isnan(out[j]) ? out[j] : x;
            } else {
                // out is the maximum so far, sum the sum of exp against it. NaN stays: it makes the sum NaN.
                float top = fmaxf(out[j], x);
                if (isinf(top)) {
                    sum[j] = isnan(x) || isnan(sum[j]) ? NAN_F : 1.0f;
                } else {
                    sum[j] = sum[j] * expf(out[j] - top) + expf(x - top);
                }
                out[j] = top;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
        float x = out[j];
        if (f.vectors > 1 && f.reduce == LOG_SUM_EXP) x = isinf(x) && !isnan(sum[j]) ? x : x + logf(sum[j]);
        if (lane == 0 && from + j < c.queries) scores[((u64)pool * queries + from + j) * line + b] = x;
    }
}

#define GROUP_MAX 0
#define GROUP_MEAN 1
#define GROUP_SOFTMAX 2

// The scores of a pool's queries to one a block; resident [pools][queries], ln of mass, -inf where there is none.
// One thread block a pool; a thread has every blockDim-th candidate.
extern "C" __global__ void score_combine(const float* scores, const float* resident, const Candidates* of, u32 kv_heads,
                                         u32 blocks, u32 queries, u32 line, u32 group, float* out) {
    __shared__ float room[33];
    u32 pool = blockIdx.x;
    Candidates c = of[pool / kv_heads];
    float* to = out + (u64)pool * blocks + c.first;
    for (u32 i = 0; i < c.queries; i++) {
        const float* row = scores + ((u64)pool * queries + i) * line;
        float factor = group == GROUP_MEAN ? 1.0f / (float)c.queries : 1.0f, top = 0.0f;
        if (group == GROUP_SOFTMAX) {
            float own = resident[(u64)pool * queries + i];
            top = own;
            for (u32 b = threadIdx.x; b < c.count; b += blockDim.x) top = fmaxf(top, row[b]);
            top = block_max(top, room);
            float sum = 0.0f;
            for (u32 b = threadIdx.x; b < c.count; b += blockDim.x) {
                float e = isinf(top) ? (row[b] == INF ? 1.0f : 0.0f) : expf(row[b] - top);
                // A NaN is no part of the sum.
                if (!isnan(row[b])) sum += e;
            }
            sum = block_sum(sum, room);
            factor = isinf(top) ? 1.0f / fmaxf(sum + (own == INF ? 1.0f : 0.0f), 1.0f) : 1.0f / (sum + expf(own - top));
        }
        for (u32 b = threadIdx.x; b < c.count; b += blockDim.x) {
            float s = row[b];
            if (group == GROUP_SOFTMAX && !isnan(s)) s = isinf(top) ? (s == INF ? 1.0f : 0.0f) : expf(s - top);
            if (group == GROUP_MAX) {
                float best = to[b];
                to[b] = i == 0 || !(best >= s || isnan(best)) ? s : best;
            } else {
                to[b] = i == 0 ? s * factor : to[b] + s * factor;
            }
        }
    }
}
