// One thread block a row.
extern "C" __global__ void rms_norm(const float* x, const float* weight, float eps, u32 dim, half_t* out) {
    __shared__ float room[33];
    const float* row = x + (u64)blockIdx.x * dim;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) squares += row[i] * row[i];
    float factor = 1.0f / sqrtf(block_sum(squares, room) / (float)dim + eps);
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x)
        out[(u64)blockIdx.x * dim + i] = to_half(row[i] * factor * weight[i]);
}
