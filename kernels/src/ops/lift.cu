// Queries to the summary's space: lifted [pools][queries][DIM] and bias [pools][queries]. The queries of a pool are those of
// its ranking rows, row after row. One thread block a query; the places behind the last one stay as they are.
extern "C" __global__ void __launch_bounds__(128)
    lift(const half_t* q, const float* fit, const u32* row_first, const u32* control, u32 heads, u32 kv_heads,
         u32 queries, float* lifted, float* bias) {
    __shared__ float query[HEAD_DIM], out[DIM];
    u32 i = blockIdx.x, pool = blockIdx.y, seq = pool / kv_heads;
    SeqControl c = seq_control(control, seq);
    if (i >= query_count(c) || candidate_count(c) == 0) return;
    u32 rows = c.rows;
    for (u32 n = i / GROUP; n; n--) rows &= rows - 1;
    u32 row = row_first[seq] + __ffs(rows) - 1, head = pool % kv_heads * GROUP + i % GROUP;
    const half_t* from = q + ((u64)row * heads + head) * HEAD_DIM;
    for (u32 d = threadIdx.x; d < HEAD_DIM; d += blockDim.x) query[d] = to_float(from[d]);
    __syncthreads();
    float along = summary_lift(fit + (u64)pool * FIT_LEN, query, out);
    __syncthreads();
    u64 place = (u64)pool * queries + i;
    for (u32 d = threadIdx.x; d < DIM; d += blockDim.x) lifted[place * DIM + d] = out[d];
    if (threadIdx.x == 0) bias[place] = along;
}
