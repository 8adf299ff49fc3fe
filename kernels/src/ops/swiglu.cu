// gate_up [rows][gate: inner | up: inner], out [rows][inner].
extern "C" __global__ void swiglu(const float* gate_up, u32 inner, half_t* out) {
    const float* gate = gate_up + (u64)blockIdx.y * 2 * inner;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= inner) return;
    float g = gate[i];
    out[(u64)blockIdx.y * inner + i] = to_half(g / (1.0f + expf(-g)) * gate[inner + i]);
}
