// table [vocab][hidden], out [rows][hidden]. A token outside the vocabulary makes its row NaN.
extern "C" __global__ void embed(const half_t* table, const u32* tokens, u32 vocab, u32 hidden, float* out) {
    let_next_start();
    wait_for_last();
    u32 r = blockIdx.x, token = tokens[r];
    const half_t* from = table + (u64)token * hidden;
    for (u32 i = threadIdx.x; i < hidden; i += blockDim.x)
        out[(u64)r * hidden + i] = token < vocab ? to_float(from[i]) : NAN_F;
}
