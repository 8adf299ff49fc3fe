// One warp a head of a row: queries, then keys, then values, as in qkv. k and v start at their first written row.
extern "C" __global__ void rope(const float* qkv, const float* q_norm, const float* k_norm, float eps,
                                const u32* positions, const float* inv_freq, u32 heads, u32 kv_heads, u32 d,
                                half_t* q, half_t* k, half_t* v) {
    let_next_start();
    const int OWN = 2;
    u32 r = blockIdx.x, lane = threadIdx.x & 31;
    u32 all = heads + 2 * kv_heads, half = d / 2;
    u32 h = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (h >= all) return;
    bool of_q = h < heads, of_v = h >= heads + kv_heads;
    const float* x = qkv + ((u64)r * all + h) * d;
    const float* weight = of_q ? q_norm : k_norm;
    float position = (float)positions[r];
    // Positions are older than the kernel before this one, so the first angles are made while it runs.
    float c[OWN], s[OWN];
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        u32 i = lane + 32 * j;
        // The angle is rounded to f32 before its sine is taken, as on the CPU.
        float angle = i < half && !of_v ? __fmul_rn(position, inv_freq[i]) : 0.0f;
        c[j] = cosf(angle);
        s[j] = sinf(angle);
    }
    wait_for_last();
    if (of_v) {
        half_t* to = v + ((u64)r * kv_heads + h - heads - kv_heads) * d;
        for (u32 i = lane; i < d; i += 32) to[i] = to_half(x[i]);
        return;
    }
    half_t* to = of_q ? q + ((u64)r * heads + h) * d : k + ((u64)r * kv_heads + h - heads) * d;
    float factor = 1.0f;
    if (weight) {
        float squares = 0.0f;
        for (u32 i = lane; i < d; i += 32) squares += x[i] * x[i];
        factor = 1.0f / sqrtf(warp_sum(squares) / (float)d + eps);
    }
    auto turn = [&](u32 i, float cosine, float sine) {
        float a = x[i] * factor, b = x[i + half] * factor;
        if (weight) {
            a *= weight[i];
            b *= weight[i + half];
        }
        to[i] = to_half(a * cosine - b * sine);
        to[i + half] = to_half(b * cosine + a * sine);
    };
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        u32 i = lane + 32 * j;
        if (i < half) turn(i, c[j], s[j]);
    }
    for (u32 i = lane + 32 * OWN; i < half; i += 32) {
        float angle = __fmul_rn(position, inv_freq[i]);
        turn(i, cosf(angle), sinf(angle));
    }
}
