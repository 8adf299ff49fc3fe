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

// The n-th smallest (from 1) of key(0) .. key(count - 1), bit by bit: the largest x that at most n - 1 keys are below.
// `below`: how many keys are smaller than it.
template <class Key>
__device__ __forceinline__ u32 nth_smallest(Key key, u32 count, u32 n, u32& below) {
    u32 x = 0;
    below = 0;
    for (u32 bit = 1u << 31; bit; bit >>= 1) {
        u32 less = 0;
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) less += key(i) < (x | bit);
        less = block_total(less);
        if (less < n) {
            x |= bit;
            below = less;
        }
    }
    return x;
}
