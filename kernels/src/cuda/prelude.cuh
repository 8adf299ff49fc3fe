// What every kernel shares. No header is included, so that NVRTC alone compiles all of this.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A bfloat16, by its bits.
typedef u16 half_t;

#define FULL 0xffffffffu
#define INF __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fc00000)

__device__ __forceinline__ float to_float(half_t x) { return __uint_as_float((u32)x << 16); }

// The two halves of a word, lower first.
__device__ __forceinline__ float low(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(u32 x) { return __uint_as_float(x & 0xffff0000u); }

// To the nearest bfloat16, ties to even; NaN stays NaN.
__device__ __forceinline__ half_t to_half(float x) {
    half_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// Programmatic dependent launch, sm_90 and later. The kernels of a stream may be launched early: then such a kernel waits for
// the one before it, which is complete and visible from then on, before it touches anything that it wrote or may read.
__device__ __forceinline__ void wait_for_last() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream start, as far as there is room, once all thread blocks have said this.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int at = 16; at; at >>= 1) x += __shfl_xor_sync(FULL, x, at);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int at = 16; at; at >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL, x, at));
    return x;
}

// Over a block of at most 1024 threads; `room` holds 33 floats. Everybody gets the result.
__device__ __forceinline__ float block_sum(float x, float* room) {
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = x;
    __syncthreads();
    if (threadIdx.x < 32) {
        float y = threadIdx.x < (blockDim.x + 31) / 32 ? room[threadIdx.x] : 0.0f;
        y = warp_sum(y);
        if (threadIdx.x == 0) room[32] = y;
    }
    __syncthreads();
    return room[32];
}

__device__ __forceinline__ float block_max(float x, float* room) {
    x = warp_max(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = x;
    __syncthreads();
    if (threadIdx.x < 32) {
        float y = threadIdx.x < (blockDim.x + 31) / 32 ? room[threadIdx.x] : -INF;
        y = warp_max(y);
        if (threadIdx.x == 0) room[32] = y;
    }
    __syncthreads();
    return room[32];
}

// D += A B of one warp: A 16 x 16, B 16 x 8, both bfloat16, D 16 x 8 in f32.
__device__ __forceinline__ void mma(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
