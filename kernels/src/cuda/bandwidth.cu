// Reads all of `from` and keeps nothing; `out` is written if the sum is what it never is, so that loads stay.
extern "C" __global__ void bandwidth_read(const uint4* from, u64 n, u32 never, u32* out) {
    u64 stride = (u64)gridDim.x * blockDim.x, i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 sum = 0;
    for (; i + 7 * stride < n; i += 8 * stride) {
        uint4 x[8];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = from[i + j * stride];
#pragma unroll
        for (int j = 0; j < 8; j++) sum ^= x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
    }
    for (; i < n; i += stride) sum ^= from[i].x ^ from[i].w;
    if (sum == never) *out = sum;
}

// Chunks of 8 KiB from mapped host memory, in no order, a warp a chunk, eight 16-byte loads in flight a lane.
extern "C" __global__ void bandwidth_gather(const uint4* from, u32 chunks, uint4* to) {
    u32 lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x >> 5);
    for (u32 n = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); n < chunks; n += warps) {
        const uint4* a = from + (u64)((n * 0x9e3779b1u) & (chunks - 1)) * 512 + lane;
        uint4* b = to + (u64)n * 512 + lane;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 x[8];
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = a[half * 256 + 32 * j];
#pragma unroll
            for (int j = 0; j < 8; j++) b[half * 256 + 32 * j] = x[j];
        }
    }
}
