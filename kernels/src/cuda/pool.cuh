// Pools of slots on the device, and what kernels that work on them share. It comes before the policies' own code.
//
// A pool is one thread block's: all its threads call the functions below together.

#define NONE 0xffffffffu

// Flags of a slot: its block is of the last selection; it was fetched and has not yet had the mean block's share of mass.
#define SELECTED 1u
#define UNUSED 2u

// A slot's history; core's SlotMeta, its flags, and the evictor's own word.
struct __align__(16) SlotMeta {
    u32 block, admitted, last_selected, last_attended, selections;
    float mass;
    u32 flags, own;
};

// The pool as an evictor sees it. state[0] counts admissions; the other three words are the evictor's.
struct Pool {
    SlotMeta* meta;
    u32 slots;
    u32* state;
    u64 seed;
    u32 now;
};

// SplitMix64's finaliser.
__device__ __forceinline__ u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// The order of floats as that of integers; -0 is 0. A NaN is the caller's.
__device__ __forceinline__ u32 ascending(float x) {
    u32 bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

// Sum over the block.
__device__ __forceinline__ u32 block_total(u32 x) {
    __shared__ u32 room[32];
    u32 lane = threadIdx.x & 31;
    x = __reduce_add_sync(FULL, x);
    __syncthreads();
    if (lane == 0) room[threadIdx.x >> 5] = x;
    __syncthreads();
    return __reduce_add_sync(FULL, lane < blockDim.x / 32 ? room[lane] : 0);
}

// How many threads before this one raise `flag`; `all`: how many of the block do.
__device__ __forceinline__ u32 block_rank(bool flag, u32& all) {
    __shared__ u32 room[32];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 raised = __ballot_sync(FULL, flag);
    __syncthreads();
    if (lane == 0) room[warp] = __popc(raised);
    __syncthreads();
    u32 count = lane < blockDim.x / 32 ? room[lane] : 0;
    all = __reduce_add_sync(FULL, count);
    return __reduce_add_sync(FULL, lane < warp ? count : 0) + __popc(raised & ((1u << lane) - 1));
}

// The sum of `count` over the threads before this one; `all`: over the block.
__device__ __forceinline__ u32 block_offset(u32 count, u32& all) {
    __shared__ u32 room[32];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sum = count;
#pragma unroll
    for (u32 at = 1; at < 32; at *= 2) {
        u32 other = __shfl_up_sync(FULL, sum, at);
        if (lane >= at) sum += other;
    }
    __syncthreads();
    if (lane == 31) room[warp] = sum;
    __syncthreads();
    u32 of = lane < blockDim.x / 32 ? room[lane] : 0;
    all = __reduce_add_sync(FULL, of);
    return __reduce_add_sync(FULL, lane < warp ? of : 0) + sum - count;
}

// Keys that a thread keeps in registers while it searches.
#define KEPT 4

// The n-th smallest (from 1) of key(0) .. key(count - 1), bit by bit: the largest x that at most n - 1 keys are below.
// `below`: how many keys are smaller than it.
template <class Key>
__device__ __forceinline__ u32 nth_smallest(Key key, u32 count, u32 n, u32& below) {
    __shared__ u32 room[2][32];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x / 32;
    u32 kept[KEPT], some = 0, every = NONE, rest = threadIdx.x + KEPT * blockDim.x;
#pragma unroll
    for (u32 j = 0; j < KEPT; j++) {
        u32 i = threadIdx.x + j * blockDim.x;
        kept[j] = i < count ? key(i) : NONE;
        if (i < count) some |= kept[j], every &= kept[j];
    }
    for (u32 i = rest; i < count; i += blockDim.x) {
        u32 k = key(i);
        some |= k, every &= k;
    }
    some = __reduce_or_sync(FULL, some);
    every = __reduce_and_sync(FULL, every);
    __syncthreads();
    if (lane == 0) room[0][warp] = some, room[1][warp] = every;
    __syncthreads();
    some = __reduce_or_sync(FULL, lane < warps ? room[0][lane] : 0);
    every = __reduce_and_sync(FULL, lane < warps ? room[1][lane] : NONE);
    __syncthreads();
    // Bits that all keys share, from the top, are found.
    below = 0;
    if (some == every) return every;
    u32 bit = 1u << (31 - __clz(some ^ every)), x = every & ~(2 * bit - 1), turn = 0;
    for (; bit; bit >>= 1, turn ^= 1) {
        u32 less = 0, split = x | bit;
#pragma unroll
        for (u32 j = 0; j < KEPT; j++) less += kept[j] < split;
        for (u32 i = rest; i < count; i += blockDim.x) less += key(i) < split;
        less = __reduce_add_sync(FULL, less);
        // Whoever writes here again has passed the next barrier, behind which all have read this.
        if (lane == 0) room[turn][warp] = less;
        __syncthreads();
        less = __reduce_add_sync(FULL, lane < warps ? room[turn][lane] : 0);
        if (less < n) x = split, below = less;
    }
    return x;
}
