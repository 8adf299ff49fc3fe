// out[row][n] = sum over k of w[n][k] x[row][k] (+ bias[n]) (+ out[row][n]).
//
// One thread block has 16 weight rows and 8 NT rows of x; its eight warps divide the columns, and their sums are added
// in the order of the warps. A row's result depends on that row alone: neither on NT nor on the other rows.
// Within 32 columns the tensor cores' order is permuted the same way for both sides, so that a lane reads 16 bytes.
template <int NT>
__device__ void gemm_rows(const half_t* x, const half_t* w, const float* bias, u32 rows, u32 n, u32 k, u32 accumulate,
                          float* out) {
    const int WARPS = 8, WIDTH = 8 * NT;
    __shared__ float sums[WARPS][16][WIDTH + 1];
    u32 warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    u32 first = blockIdx.x * 16, row0 = blockIdx.y * WIDTH;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    float d[NT][4];
#pragma unroll
    for (int j = 0; j < NT; j++) d[j][0] = d[j][1] = d[j][2] = d[j][3] = 0.0f;
    bool has0 = first + g < n, has1 = first + g + 8 < n;
    const half_t* w0 = w + (u64)(first + g) * k;
    const half_t* w1 = w0 + (u64)8 * k;
    u32 steps = (k + 31) / 32;
#pragma unroll(NT == 1 ? 4 : 2)
    for (u32 s = warp; s < steps; s += WARPS) {
        u32 at = s * 32 + t * 8;
        bool inside = at < k;
        uint4 a0 = has0 && inside ? __ldcs((const uint4*)(w0 + at)) : zero;
        uint4 a1 = has1 && inside ? __ldcs((const uint4*)(w1 + at)) : zero;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            u32 r = row0 + 8 * j + g;
            uint4 b = r < rows && inside ? *(const uint4*)(x + (u64)r * k + at) : zero;
            mma(d[j], a0.x, a1.x, a0.y, a1.y, b.x, b.y);
            mma(d[j], a0.z, a1.z, a0.w, a1.w, b.z, b.w);
        }
    }
#pragma unroll
    for (int j = 0; j < NT; j++) {
        sums[warp][g][8 * j + 2 * t] = d[j][0];
        sums[warp][g][8 * j + 2 * t + 1] = d[j][1];
        sums[warp][g + 8][8 * j + 2 * t] = d[j][2];
        sums[warp][g + 8][8 * j + 2 * t + 1] = d[j][3];
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < 16 * WIDTH; i += blockDim.x) {
        u32 col = i % 16, r = i / 16;
        if (first + col >= n || row0 + r >= rows) continue;
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < WARPS; v++) sum += sums[v][col][r];
        u64 to = (u64)(row0 + r) * n + first + col;
        if (bias) sum += bias[first + col];
        if (accumulate) sum += out[to];
        out[to] = sum;
    }
}

#define GEMM_ROWS(NT)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                              \
        gemm_rows_##NT(const half_t* x, const half_t* w, const float* bias, u32 rows, u32 n, u32 k, u32 accumulate, \
                       float* out) {                                                                               \
        gemm_rows<NT>(x, w, bias, rows, n, k, accumulate, out);                                                    \
    }
GEMM_ROWS(1)
GEMM_ROWS(2)
GEMM_ROWS(4)

// Any number of columns: one warp an output.
extern "C" __global__ void gemm_plain(const half_t* x, const half_t* w, const float* bias, u32 rows, u32 n, u32 k,
                                      u32 accumulate, float* out) {
    u32 col = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), r = blockIdx.y;
    if (col >= n) return;
    float sum = 0.0f;
    for (u32 i = threadIdx.x & 31; i < k; i += 32)
        sum += to_float(x[(u64)r * k + i]) * to_float(w[(u64)col * k + i]);
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) == 0) {
        u64 to = (u64)r * n + col;
        if (bias) sum += bias[col];
        if (accumulate) sum += out[to];
        out[to] = sum;
    }
}

// The bias of a product that a library made.
extern "C" __global__ void add_bias(const float* bias, u32 n, float* out) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[(u64)blockIdx.y * n + i] += bias[i];
}
