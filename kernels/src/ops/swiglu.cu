__device__ __forceinline__ half_t gated(float gate, float up) { return to_half(gate / (1.0f + expf(-gate)) * up); }

// gate_up [rows][gate: inner | up: inner], out [rows][inner]. Four columns a thread where `inner` is whole fours, else one.
extern "C" __global__ void swiglu(const float* gate_up, u32 inner, half_t* out) {
    let_next_start();
    wait_for_last();
    const float* gate = gate_up + (u64)blockIdx.y * 2 * inner;
    half_t* to = out + (u64)blockIdx.y * inner;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (inner % 4) {
        if (i < inner) to[i] = gated(gate[i], gate[inner + i]);
        return;
    }
    if (4 * i >= inner) return;
    float4 g = ((const float4*)gate)[i], u = ((const float4*)(gate + inner))[i];
    u32 a = gated(g.x, u.x), b = gated(g.y, u.y), c = gated(g.z, u.z), d = gated(g.w, u.w);
    ((uint2*)to)[i] = make_uint2(a | b << 16, c | d << 16);
}
