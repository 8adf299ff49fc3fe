// What a step tells of a sequence; core's `SeqControl`, behind the step's own words.
struct __align__(16) SeqControl {
    // Candidates are the blocks first .. end.
    u32 first, end;
    // Sealed blocks.
    u32 blocks;
    // Ranking rows, as bits; none: the sequence sits this step out.
    u32 rows;
};

#define CONTROL_STEP 4

__device__ __forceinline__ SeqControl seq_control(const u32* control, u32 seq) {
    return reinterpret_cast<const SeqControl*>(control + CONTROL_STEP)[seq];
}

// Queries of a pool.
__device__ __forceinline__ u32 query_count(const SeqControl& c) { return __popc(c.rows) * GROUP; }

__device__ __forceinline__ u32 candidate_count(const SeqControl& c) { return c.end > c.first ? c.end - c.first : 0; }
