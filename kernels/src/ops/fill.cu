// Element i of seeded noise, as Noise::at: no contraction, so that the bits are the host's.
__device__ __forceinline__ float noise_at(u64 seed, u64 i, float mean, float unit) {
    u64 x = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    u32 a = (u32)x, b = (u32)(x >> 32);
    int sum = (int)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) - 131070;
    return __fadd_rn(mean, __fmul_rn(unit, (float)sum));
}

extern "C" __global__ void fill_f32(u64 seed, float mean, float unit, u64 n, float* out) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x)
        out[i] = noise_at(seed, i, mean, unit);
}

// Eight elements a thread, one 16-byte store; `out` may be mapped host memory and starts at a whole 16 bytes.
extern "C" __global__ void fill_bf16(u64 seed, float mean, float unit, u64 n, half_t* out) {
    u64 whole = n / 8, stride = (u64)gridDim.x * blockDim.x, first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (u64 i = first; i < whole; i += stride) {
        u32 x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 low_half = to_half(noise_at(seed, 8 * i + 2 * j, mean, unit));
            x[j] = low_half | (u32)to_half(noise_at(seed, 8 * i + 2 * j + 1, mean, unit)) << 16;
        }
        ((uint4*)out)[i] = make_uint4(x[0], x[1], x[2], x[3]);
    }
    u64 last = 8 * whole + first;
    if (last < n) out[last] = to_half(noise_at(seed, last, mean, unit));
}
