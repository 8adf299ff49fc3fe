// A prompt's rows k, v [tokens][kv_heads][d] to chunks [blocks][kv_heads][K | V] in mapped host memory.
// One thread block a (block, KV head).
extern "C" __global__ void pack(const half_t* k, const half_t* v, u32 kv_heads, u32 tokens, u32 d, half_t* to) {
    u32 b = blockIdx.x, head = blockIdx.y;
    u32 half = tokens * d;
    half_t* chunk = to + ((u64)b * kv_heads + head) * 2 * half;
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        u64 from = (((u64)b * tokens + i / d) * kv_heads + head) * d + i % d;
        chunk[i] = k[from];
        chunk[half + i] = v[from];
    }
}
