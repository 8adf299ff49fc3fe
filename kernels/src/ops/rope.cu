// One warp a head of a row: queries, then keys, then values, as in qkv. k and v start at their first written row.
extern "C" __global__ void rope(const float* qkv, const float* q_norm, const float* k_norm, float eps,
                                const u32* positions, const float* inv_freq, u32 heads, u32 kv_heads, u32 d,
                                half_t* q, half_t* k, half_t* v) {
    u32 r = blockIdx.x, lane = threadIdx.x & 31;
    u32 all = heads + 2 * kv_heads, half = d / 2;
    for (u32 h = threadIdx.x >> 5; h < all; h += blockDim.x >> 5) {
        const float* x = qkv + ((u64)r * all + h) * d;
        if (h >= heads + kv_heads) {
            half_t* to = v + ((u64)r * kv_heads + h - heads - kv_heads) * d;
            for (u32 i = lane; i < d; i += 32) to[i] = to_half(x[i]);
            continue;
        }
        bool of_q = h < heads;
        half_t* to = of_q ? q + ((u64)r * heads + h) * d : k + ((u64)r * kv_heads + h - heads) * d;
        const float* weight = of_q ? q_norm : k_norm;
        float factor = 1.0f;
        if (weight) {
            float squares = 0.0f;
            for (u32 i = lane; i < d; i += 32) squares += x[i] * x[i];
            factor = 1.0f / sqrtf(warp_sum(squares) / (float)d + eps);
        }
        float position = (float)positions[r];
        for (u32 i = lane; i < half; i += 32) {
            float a = x[i] * factor, b = x[i + half] * factor;
            if (weight) {
                a *= weight[i];
                b *= weight[i + half];
            }
            // The angle is rounded to f32 before its sine is taken, as on the CPU.
            float angle = __fmul_rn(position, inv_freq[i]);
            float c = cosf(angle), s = sinf(angle);
            to[i] = to_half(a * c - b * s);
            to[i + half] = to_half(b * c + a * s);
        }
    }
}
