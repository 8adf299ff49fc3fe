// One thread block a row. Rows of whole fours that fit the block's registers are read once; others are read twice.
extern "C" __global__ void rms_norm(const float* x, const float* weight, float eps, u32 dim, half_t* out) {
    __shared__ float room[33];
    const int FOURS = 2;
    let_next_start();
    const float* row = x + (u64)blockIdx.x * dim;
    half_t* to = out + (u64)blockIdx.x * dim;
    if (dim % 4 || dim > 4 * FOURS * blockDim.x) {
        wait_for_last();
        float squares = 0.0f;
        for (u32 i = threadIdx.x; i < dim; i += blockDim.x) squares += row[i] * row[i];
        float factor = 1.0f / sqrtf(block_sum(squares, room) / (float)dim + eps);
        for (u32 i = threadIdx.x; i < dim; i += blockDim.x) to[i] = to_half(row[i] * factor * weight[i]);
        return;
    }
    float4 w[FOURS], v[FOURS];
    u32 fours = dim / 4;
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        u32 i = threadIdx.x + j * blockDim.x;
        w[j] = i < fours ? ((const float4*)weight)[i] : make_float4(0, 0, 0, 0);
    }
    wait_for_last();
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        u32 i = threadIdx.x + j * blockDim.x;
        v[j] = i < fours ? ((const float4*)row)[i] : make_float4(0, 0, 0, 0);
        squares += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
    }
    float factor = 1.0f / sqrtf(block_sum(squares, room) / (float)dim + eps);
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        u32 i = threadIdx.x + j * blockDim.x;
        if (i >= fours) continue;
        u32 a = to_half(v[j].x * factor * w[j].x), b = to_half(v[j].y * factor * w[j].y);
        u32 c = to_half(v[j].z * factor * w[j].z), d = to_half(v[j].w * factor * w[j].w);
        ((uint2*)to)[i] = make_uint2(a | b << 16, c | d << 16);
    }
}
