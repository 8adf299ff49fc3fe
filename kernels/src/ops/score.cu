#define REDUCE_MAX 0
#define REDUCE_LOG_SUM_EXP 1
#define REDUCE_SUM 2

// Queries of a warp.
#define QUERIES 8

// The logits of one block for 8 queries; a whole warp calls it, everybody gets them. Any stored form.
__device__ __forceinline__ void block_logits(const u8* block, const float* q, const float* bias, float* out) {
    u32 lane = threadIdx.x & 31;
    float sum[QUERIES];
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
        out[j] = REDUCE == REDUCE_SUM ? 0.0f : -INF;
        sum[j] = 0.0f;
    }
    for (u32 v = 0; v < VECTORS; v++) {
        float dot[QUERIES];
#pragma unroll
        for (int j = 0; j < QUERIES; j++) dot[j] = 0.0f;
        for (u32 i = lane; i < DIM; i += 32) {
            float x = coordinate(block, v, i);
#pragma unroll
            for (int j = 0; j < QUERIES; j++) dot[j] = __fmaf_rn(x, q[(u64)j * DIM + i], dot[j]);
        }
#pragma unroll
        for (int j = 0; j < QUERIES; j++) {
            float x = warp_sum(dot[j]) + bias[j];
            if (VECTORS == 1) {
                out[j] = x;
            } else if (REDUCE == REDUCE_SUM) {
                out[j] += x;
            } else if (REDUCE == REDUCE_MAX) {
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
    if (VECTORS > 1 && REDUCE == REDUCE_LOG_SUM_EXP) {
#pragma unroll
        for (int j = 0; j < QUERIES; j++) out[j] = isinf(out[j]) && !isnan(sum[j]) ? out[j] : out[j] + logf(sum[j]);
    }
}

// A block's logits to their places, coordinate by coordinate.
__device__ __noinline__ void plain_block(const u8* summaries, const float* lifted, const float* bias, float* logits,
                                         u32 blocks, u32 count, u32 block) {
    float out[QUERIES];
    block_logits(summaries + (u64)block * SUMMARY_BYTES, lifted, bias, out);
#pragma unroll
    for (u32 j = 0; j < QUERIES; j++) {
        if ((threadIdx.x & 31) == j && j < count) logits[(u64)j * blocks + block] = out[j];
    }
}
