// Keys of the host store to stored summaries: one thread block a block and KV head.
extern "C" __global__ void __launch_bounds__(128)
    summarise(const half_t* chunks, u64 block_stride, u64 head_stride, const float* fit, u32 blocks, u8* out) {
    extern __shared__ float room[];
    float *keys = room, *vectors = room + TOKENS * HEAD_DIM;
    u32 block = blockIdx.x, head = blockIdx.y;
    const half_t* from = chunks + block * block_stride + head * head_stride;
#if TOKENS * HEAD_DIM % 8 == 0
    // 16 bytes at a time: the keys come over the bus.
    for (u32 i = threadIdx.x; i < TOKENS * HEAD_DIM / 8; i += blockDim.x) {
        uint4 x = reinterpret_cast<const uint4*>(from)[i];
        u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (u32 k = 0; k < 8; k++) keys[8 * i + k] = k % 2 ? high(words[k / 2]) : low(words[k / 2]);
    }
#else
    for (u32 i = threadIdx.x; i < TOKENS * HEAD_DIM; i += blockDim.x) keys[i] = to_float(from[i]);
#endif
    __syncthreads();
    encode_block(fit + (u64)head * FIT_LEN, keys, vectors, out + ((u64)head * blocks + block) * SUMMARY_BYTES);
}
