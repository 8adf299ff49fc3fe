// A piece of memory to be copied; either side may be mapped host memory.
struct Span {
    u64 from, to, bytes;
};

// One warp a span, eight 16-byte loads in flight a lane; spans that are not whole 16 bytes go two bytes at a time.
extern "C" __global__ void copy_spans(const Span* spans, u32 count) {
    u32 lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x >> 5);
    for (u32 n = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); n < count; n += warps) {
        Span s = spans[n];
        if (((s.from | s.to | s.bytes) & 15) == 0) {
            const uint4* from = (const uint4*)s.from;
            uint4* to = (uint4*)s.to;
            u64 all = s.bytes / 16, i = lane;
            for (; i + 7 * 32 < all; i += 8 * 32) {
                uint4 x[8];
#pragma unroll
                for (int j = 0; j < 8; j++) x[j] = from[i + 32 * j];
#pragma unroll
                for (int j = 0; j < 8; j++) to[i + 32 * j] = x[j];
            }
            for (; i < all; i += 32) to[i] = from[i];
        } else {
            const u16* from = (const u16*)s.from;
            u16* to = (u16*)s.to;
            for (u64 i = lane; i < s.bytes / 2; i += 32) to[i] = from[i];
        }
    }
}

// A copy from the host store to a slot: addresses.
struct ChunkMove {
    u64 from, to;
};

// The listed chunks of `bytes` each, a multiple of 16, from mapped host memory to slots. One warp a chunk, eight 16-byte
// loads in flight a lane; few thread blocks keep the link full.
extern "C" __global__ void __launch_bounds__(512) fetch_chunks(const ChunkMove* moves, const u32* count, u32 bytes) {
    u32 lane = threadIdx.x & 31, warps = gridDim.x * (blockDim.x >> 5), n = *count, all = bytes / 16;
    // Neighbours in the list go to different blocks, so that short lists use all of them.
    for (u32 m = (threadIdx.x >> 5) * gridDim.x + blockIdx.x; m < n; m += warps) {
        const uint4* from = (const uint4*)moves[m].from;
        uint4* to = (uint4*)moves[m].to;
        u32 i = lane;
        for (; i + 7 * 32 < all; i += 8 * 32) {
            uint4 x[8];
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = from[i + 32 * j];
#pragma unroll
            for (int j = 0; j < 8; j++) to[i + 32 * j] = x[j];
        }
        for (; i < all; i += 32) to[i] = from[i];
    }
}
