// The lowest index of a row's largest logit, or none where all are NaN. One thread block a row.
extern "C" __global__ void argmax(const float* logits, u32 vocab, u32* out) {
    const u32 none = 0xffffffffu;
    __shared__ float values[32];
    __shared__ u32 places[32];
    const float* row = logits + (u64)blockIdx.x * vocab;
    float best = -INF;
    u32 place = none;
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) {
        float x = row[i];
        // A NaN is not greater than anything; the first -inf counts.
        if (x > best || (place == none && x == best)) {
            best = x;
            place = i;
        }
    }
    u32 lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    for (int round = 0; round < 2; round++) {
#pragma unroll
        for (int at = 16; at; at >>= 1) {
            float other = __shfl_xor_sync(FULL, best, at);
            u32 there = __shfl_xor_sync(FULL, place, at);
            bool wins = there != none && (place == none || other > best || (other == best && there < place));
            if (wins) {
                best = other;
                place = there;
            }
        }
        if (round == 1) break;
        if (lane == 0) {
            values[threadIdx.x >> 5] = best;
            places[threadIdx.x >> 5] = place;
        }
        __syncthreads();
        best = lane < warps ? values[lane] : -INF;
        place = lane < warps ? places[lane] : none;
    }
    if (threadIdx.x == 0) out[blockIdx.x] = place;
}
