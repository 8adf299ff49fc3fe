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

// logits [pools][queries][blocks], candidates only; lifted [pools][queries][DIM], queries a multiple of 8. One warp a block
// and 8 queries.
extern "C" __global__ void __launch_bounds__(256)
    score_blocks(const u8* summaries, const float* lifted, const float* bias, const u32* control, u32 kv_heads,
                 u32 blocks, u32 queries, float* logits) {
    u32 pool = blockIdx.y, from = blockIdx.z * QUERIES, lane = threadIdx.x & 31;
    SeqControl c = seq_control(control, pool / kv_heads);
    u32 b = c.first + blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), count = query_count(c);
    if (b >= c.end || from >= count) return;
    u64 place = (u64)pool * queries + from;
    float out[QUERIES];
    block_logits(summaries + ((u64)pool * blocks + b) * SUMMARY_BYTES, lifted + place * DIM, bias + place, out);
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
        if (lane == j && from + j < count) logits[(place + j) * blocks + b] = out[j];
    }
}
