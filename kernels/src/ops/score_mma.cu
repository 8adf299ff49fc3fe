// Scores on tensor cores: 8 stored vectors are the columns of B, 8 queries the rows of A, twice: each query is split into a
// bfloat16 and the rest in a second one, which is row g + 8, so that products keep f32's precision.
//
// A lane reads whole pieces of PW words of a vector and uses the coordinates in the order in which they come; A is laid out
// in the same order.
//
// Codes are not decoded: a code of b bits goes into the mantissa of 2.0, which makes 2 + c · 2^(p - 6) of it, p the bit
// that it starts at. The query is scaled by 2^(6 - p), and what the 2s add up to is what the sums start from. 8-bit codes
// are two 4-bit ones, of which one weighs 16 times the other.

#ifndef SCORE_THREADS
#define SCORE_THREADS 256
#endif
#ifndef MIN_CTAS
#define MIN_CTAS 2
#endif
#ifndef LOADS
#define LOADS 8
#endif
#ifndef PIPE
#define PIPE 0
#endif

#if MMA

#if STORAGE == STORAGE_BF16
#define CODED 0
#define PAIRS 1
#define WORD_CODES 2
#else
#define CODED 1
#define SUB_BITS (BITS < 4 ? BITS : 4)
// Pairs of coordinates (one of the lower half-word, one of the upper) in a word.
#define PAIRS (16 / SUB_BITS)
#define WORD_CODES (32 / BITS)
#endif

// Words of a vector; all are whole.
constexpr u32 WORDS = CODE_BYTES / 4;

// Words of a piece: as many as alignment, the vector's length and the border of the parts allow.
__host__ __device__ constexpr bool piece_fits(u32 words) {
    return WORDS % words == 0 && (words == 1 || WORDS % (4 * words) == 0) && CODE_BYTES % (4 * words) == 0 &&
           SUMMARY_BYTES % (4 * words) == 0 && (PARTS == 1 || !CODED || UPPER % (4 * words * WORD_CODES) == 0);
}
constexpr u32 PW = piece_fits(4) ? 4 : piece_fits(2) ? 2 : 1;
constexpr u32 PIECES = WORDS / PW;
// A chunk is a piece of each of the four lanes that share a vector.
constexpr u32 CHUNKS = (PIECES + 3) / 4;
constexpr u32 CHUNK_STEPS = PW * PAIRS / 2;
constexpr u32 STEPS = CHUNKS * CHUNK_STEPS;
static_assert(piece_fits(PW) && PW * PAIRS % 2 == 0, "score.rs lets no other form come here");

// Parts that have scales, and so sums, of their own.
constexpr u32 SUMS = STORAGE == STORAGE_AFFINE ? PARTS : 1;

// A tile is 8 vectors; a unit is the tiles of a block, or the blocks of a tile.
constexpr u32 TILES = VECTORS < 8 ? 1 : VECTORS / 8;
constexpr u32 UNIT_BLOCKS = VECTORS < 8 ? 8 / VECTORS : 1;

// Pieces that a lane has in flight together: chunks of each tile (the rest of a vector comes in later turns), and units.
__host__ __device__ constexpr u32 fit_chunks(u32 most) { return most <= 1 || CHUNKS % most == 0 ? (most ? most : 1) : fit_chunks(most - 1); }
constexpr u32 AT_ONCE = fit_chunks(LOADS / TILES);
constexpr u32 TURNS = CHUNKS / AT_ONCE;
constexpr u32 UNITS = LOADS / TILES / AT_ONCE > 1 ? LOADS / TILES / AT_ONCE : 1;
// Blocks of a group, which a warp scores together.
constexpr u32 GROUP_BLOCKS = UNITS * UNIT_BLOCKS;
constexpr u32 UNIT_BYTES = UNIT_BLOCKS * SUMMARY_BYTES;

// Index of the sum that chunk j belongs to.
__device__ constexpr u32 sum_of(u32 j) { return SUMS == 2 && 4 * PW * j * WORD_CODES >= UPPER ? 1 : 0; }

// Bit at which pair k starts in its half-word, and in the mantissa.
__device__ constexpr u32 bit_of(u32 k) {
#if CODED
    return SUB_BITS * k;
#else
    return 0;
#endif
}
__device__ constexpr u32 mantissa_bit(u32 k) { return 3 + bit_of(k) % 4; }

// Pair k of a word as two bfloat16.
__device__ __forceinline__ u32 pair_of(u32 word, u32 k) {
#if CODED
    u32 shift = bit_of(k) / 4 * 4, mask = ((1u << SUB_BITS) - 1) << mantissa_bit(k);
    u32 moved = shift < 3 ? word << (3 - shift) : word >> (shift - 3);
    u32 out;
    // One operation: (moved & mask) | 2.0.
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(moved), "r"(mask | mask << 16), "r"(0x40004000u));
    return out;
#else
    return word;
#endif
}

// What the pair's query coordinates are multiplied with.
__device__ __forceinline__ float weight_of(u32 k) {
#if CODED
    return (float)(1u << (bit_of(k) % BITS)) * (float)(1u << (6 - mantissa_bit(k)));
#else
    return 1.0f;
#endif
}

__device__ __forceinline__ float larger(float a, float b) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}

__device__ __forceinline__ float exp2_of(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

__device__ __forceinline__ float log2_of(float x) {
    float out;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

// A of 8 queries, and what else goes with them.
struct Queries {
    // Of a step and lane: two coordinates of the query, of its rest, the next two of the query, of its rest.
    uint4 a[STEPS][32];
    // What the sums start from, and the sum of each part's coordinates.
    float start[2][8], whole[2][8];
    float room[4][SCORE_THREADS / 32][8];
    float scale[STORAGE == STORAGE_NORMAL ? 256 : 1];
};

// Two coordinates as bfloat16, and the rest of them.
__device__ __forceinline__ void split(float x, float y, u32& top, u32& rest) {
    half_t a = to_half(x), b = to_half(y);
    float p = to_float(a), q = to_float(b);
    top = a | (u32)b << 16;
    rest = to_half(isinf(p) ? 0.0f : x - p) | (u32)to_half(isinf(q) ? 0.0f : y - q) << 16;
}

// Lays A out for the queries `q` [count][DIM].
__device__ __forceinline__ void lay_out(Queries& s, const float* q, u32 count) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = lane >> 2, t = lane & 3;
    float start[SUMS] = {}, whole[SUMS] = {};
    for (u32 step = warp; step < STEPS; step += SCORE_THREADS / 32) {
        u32 j = step / CHUNK_STEPS, piece = 4 * j + t, out[4] = {0, 0, 0, 0};
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 pair = 2 * (step % CHUNK_STEPS) + i, k = pair % PAIRS;
            u32 at = (piece * PW + pair / PAIRS) * WORD_CODES;
            u32 first = at + (CODED ? bit_of(k) / BITS : 0), second = first + WORD_CODES / 2;
            if (row >= count || piece >= PIECES) continue;
            float weight = weight_of(k), x = q[row * DIM + first], y = q[row * DIM + second];
            split(x * weight, y * weight, out[2 * i], out[2 * i + 1]);
            if (CODED) {
                float sum = low(out[2 * i]) + low(out[2 * i + 1]) + (high(out[2 * i]) + high(out[2 * i + 1]));
                // A code's coordinate counts once, though 8 bits are two codes here.
                float own = bit_of(k) % BITS == 0 ? sum / weight : 0.0f;
                float mid = STORAGE == STORAGE_NORMAL ? own * (((1 << BITS) - 1) / 2.0f) : 0.0f;
#pragma unroll
                for (u32 part = 0; part < SUMS; part++) {
                    bool here = part == sum_of(j);
                    start[part] -= here ? 2.0f * sum + mid : 0.0f;
                    whole[part] += here ? own : 0.0f;
                }
            }
        }
        s.a[step][lane] = make_uint4(out[0], out[1], out[2], out[3]);
    }
    if (CODED) {
#pragma unroll
        for (u32 part = 0; part < SUMS; part++) {
            float a = start[part], b = whole[part];
            a += __shfl_xor_sync(FULL, a, 1);
            b += __shfl_xor_sync(FULL, b, 1);
            a += __shfl_xor_sync(FULL, a, 2);
            b += __shfl_xor_sync(FULL, b, 2);
            if (t == 0) {
                s.room[part][warp][row] = a;
                s.room[2 + part][warp][row] = b;
            }
        }
    }
#if STORAGE == STORAGE_NORMAL
    for (u32 i = threadIdx.x; i < 256; i += SCORE_THREADS) s.scale[i] = normal_scale(i) * LEVEL_STEP;
#endif
    __syncthreads();
    if (CODED && threadIdx.x < 8 * SUMS) {
        u32 part = threadIdx.x / 8, i = threadIdx.x % 8;
        float a = 0.0f, b = 0.0f;
        for (u32 w = 0; w < SCORE_THREADS / 32; w++) {
            a += s.room[part][w][i];
            b += s.room[2 + part][w][i];
        }
        s.start[part][i] = a;
        s.whole[part][i] = b;
    }
    if (CODED) __syncthreads();
}

// What a lane reads of a tile in one turn.
struct Words {
    u32 w[AT_ONCE][PW];
};
typedef Words Group[UNITS][TILES];

__device__ __forceinline__ void load_piece(u32 (&w)[PW], const u8* p) {
#if STORAGE == STORAGE_BF16
#define LOAD "ld.global.nc.L1::no_allocate.L2::128B"
#else
#define LOAD "ld.global.nc.L1::no_allocate.L2::128B"
#endif
    if constexpr (PW == 4) {
        asm volatile(LOAD ".v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p));
    } else if constexpr (PW == 2) {
        asm volatile(LOAD ".v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p));
    } else {
        asm volatile(LOAD ".u32 %0, [%1];" : "=r"(w[0]) : "l"(p));
    }
}

// Where a lane's codes of a group start: vector g of its first tile, piece t.
__device__ __forceinline__ const u8* codes_of(const u8* summaries, u32 block) {
    u32 lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
    u32 b = VECTORS < 8 ? block + g / VECTORS : block, v = VECTORS < 8 ? g % VECTORS : g;
    return summaries + (u64)b * SUMMARY_BYTES + v * CODE_BYTES + 4 * PW * t;
}

__device__ __forceinline__ void load_turn(Group& group, const u8* codes, u32 turn) {
#pragma unroll
    for (u32 n = 0; n < UNITS * TILES * AT_ONCE; n++) {
        u32 i = n % AT_ONCE, tile = n / AT_ONCE % TILES, unit = n / AT_ONCE / TILES, j = turn * AT_ONCE + i;
        u32(&w)[PW] = group[unit][tile].w[i];
        if (PIECES % 4 == 0 || 4 * j + (threadIdx.x & 3) < PIECES) {
            load_piece(w, codes + unit * UNIT_BYTES + tile * 8 * CODE_BYTES + 16 * PW * j);
        } else {
#pragma unroll
            for (u32 k = 0; k < PW; k++) w[k] = 0;
        }
    }
}

// Products of query g with vectors 2t and 2t + 1 of a tile; then those of the query's rest.
struct Sums {
    float d[SUMS][4];
};

__device__ __forceinline__ void multiply(Sums (&sums)[UNITS][TILES], const Group& group, const uint4* a, u32 turn) {
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
        u32 j = turn * AT_ONCE + i;
#pragma unroll
        for (u32 step = 0; step < CHUNK_STEPS; step++) {
            uint4 q = a[(j * CHUNK_STEPS + step) * 32];
            u32 first = 2 * step, second = first + 1;
#pragma unroll
            for (u32 n = 0; n < UNITS * TILES; n++) {
                const Words& words = group[n / TILES][n % TILES];
                u32 b0 = pair_of(words.w[i][first / PAIRS], first % PAIRS);
                u32 b1 = pair_of(words.w[i][second / PAIRS], second % PAIRS);
                mma(sums[n / TILES][n % TILES].d[sum_of(j)], q.x, q.y, q.z, q.w, b0, b1);
            }
        }
    }
}

// What query g needs.
struct Own {
    float bias, start[SUMS], whole[SUMS];
};

// Logits of query g with vectors 2t and 2t + 1 of tile `tile` of the unit at `block`.
__device__ __forceinline__ void to_logits(float (&x)[2], const Sums& sums, const Queries& s, const Own& own, const u8* unit,
                                          u32 tile) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 row = 2 * (threadIdx.x & 3) + i;
        const u8* block = unit + (VECTORS < 8 ? row / VECTORS : 0) * SUMMARY_BYTES;
        const u8* scales = scales_of(block, VECTORS < 8 ? row % VECTORS : 8 * tile + row);
#if STORAGE == STORAGE_AFFINE
        x[i] = own.bias;
#pragma unroll
        for (u32 part = 0; part < SUMS; part++) {
            u32 line = reinterpret_cast<const u32*>(scales)[part];
            x[i] = __fmaf_rn(high(line), sums.d[part][i] + sums.d[part][2 + i], x[i]);
            x[i] = __fmaf_rn(low(line), own.whole[part], x[i]);
        }
#elif STORAGE == STORAGE_NORMAL
        x[i] = __fmaf_rn(sums.d[0][i] + sums.d[0][2 + i], s.scale[*scales], own.bias);
#else
        x[i] = sums.d[0][i] + sums.d[0][2 + i] + own.bias;
#endif
    }
}

// Lanes t that share a block.
constexpr u32 SPAN = VECTORS >= 8 ? 4 : VECTORS == 4 ? 2 : 1;

template <typename F>
__device__ __forceinline__ float over_lanes(float x, F f) {
    if (SPAN > 1) x = f(x, __shfl_xor_sync(FULL, x, 1));
    if (SPAN > 2) x = f(x, __shfl_xor_sync(FULL, x, 2));
    return x;
}

// The vectors of a block to one number.
__device__ __forceinline__ float reduce(const float (&x)[TILES][2]) {
    auto most = [](float a, float b) { return larger(a, b); };
    auto add = [](float a, float b) { return a + b; };
    float out = REDUCE == REDUCE_SUM ? x[0][0] + x[0][1] : larger(x[0][0], x[0][1]);
#pragma unroll
    for (u32 i = 2; i < 2 * TILES; i++) out = REDUCE == REDUCE_SUM ? out + x[i / 2][i % 2] : larger(out, x[i / 2][i % 2]);
    if (REDUCE == REDUCE_SUM) return over_lanes(out, add);
    out = over_lanes(out, most);
    if (REDUCE == REDUCE_MAX) return out;
    float top = out * LOG2_E, sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 2 * TILES; i++) sum += exp2_of(__fmaf_rn(x[i / 2][i % 2], LOG2_E, -top));
    return __fmaf_rn(log2_of(over_lanes(sum, add)), LN_2, out);
}

// What a warp needs to know.
struct Task {
    const u8* summaries;
    const float *lifted, *bias;
    // Where block 0 of the first query goes, and the distance of queries.
    float* logits;
    u32 blocks, count;
    // Blocks of this thread block.
    u32 first, end;
};

// A number to its place; whether it is none.
__device__ __forceinline__ bool put(const Task& task, u32 block, float x) {
    u32 g = (threadIdx.x & 31) >> 2;
    if (block < task.first || block >= task.end || g >= task.count) return false;
    task.logits[(u64)g * task.blocks + block] = x;
    return isnan(x);
}

// The group at `block`, whose first words are in `group`; all of its blocks are readable, those of the task are written. The
// words of the group at `next` take their place if there are `more`.
__device__ __forceinline__ bool score_group(const Task& task, const Queries& s, const Own& own, u32 block, Group& group,
                                            u32 next, bool more) {
    u32 t = threadIdx.x & 3;
    const u8 *codes = codes_of(task.summaries, block), *base = task.summaries + (u64)block * SUMMARY_BYTES;
    Sums sums[UNITS][TILES];
#pragma unroll
    for (u32 n = 0; n < UNITS * TILES * SUMS; n++) {
        float(&d)[4] = sums[n / SUMS / TILES][n / SUMS % TILES].d[n % SUMS];
        d[0] = d[1] = CODED ? own.start[n % SUMS] : 0.0f;
        d[2] = d[3] = 0.0f;
    }
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
        Group ahead;
        if (PIPE && turn + 1 < TURNS) load_turn(ahead, codes, turn + 1);
        if (PIPE && turn + 1 == TURNS && more) load_turn(ahead, codes_of(task.summaries, next), 0);
        if (!PIPE && turn > 0) load_turn(group, codes, turn);
        multiply(sums, group, &s.a[0][threadIdx.x & 31], turn);
        if (PIPE) {
#pragma unroll
            for (u32 n = 0; n < UNITS * TILES; n++) group[n / TILES][n % TILES] = ahead[n / TILES][n % TILES];
        }
    }
    if (!PIPE && more) load_turn(group, codes_of(task.summaries, next), 0);
    bool none = false;
    float mine = 0.0f;
#pragma unroll
    for (u32 unit = 0; unit < UNITS; unit++) {
        float x[TILES][2];
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            to_logits(x[tile], sums[unit][tile], s, own, base + unit * UNIT_BYTES, tile);
        }
        u32 at = block + unit * UNIT_BLOCKS;
        if (VECTORS == 1) {
            none |= put(task, at + 2 * t, x[0][0]);
            none |= put(task, at + 2 * t + 1, x[0][1]);
        } else if (VECTORS < 8) {
            float y = reduce(x);
            if (t % SPAN == 0) none |= put(task, at + t / SPAN, y);
        } else {
            // All lanes of a query have its number; of four each writes another block's.
            float y = reduce(x);
            mine = unit % 4 == t ? y : mine;
            u32 since = unit / 4 * 4;
            if ((unit % 4 == 3 || unit + 1 == UNITS) && since + t <= unit) none |= put(task, block + since + t, mine);
        }
    }
    return none;
}

// Blocks first .. end of a pool.
__device__ __forceinline__ void score_all(const Task& task) {
    __shared__ Queries s;
    constexpr u32 stride = SCORE_THREADS / 32 * GROUP_BLOCKS;
    u32 lane = threadIdx.x & 31, start = task.first + (threadIdx.x >> 5) * GROUP_BLOCKS;
    // The last blocks of a pool may be scored twice, so that no more is read than there is.
    u32 most = task.blocks - GROUP_BLOCKS;
    Group group;
    if (start < task.end) load_turn(group, codes_of(task.summaries, min(start, most)), 0);
    lay_out(s, task.lifted, task.count);
    Own own;
    own.bias = lane >> 2 < task.count ? task.bias[lane >> 2] : 0.0f;
#pragma unroll
    for (u32 part = 0; part < SUMS; part++) {
        own.start[part] = CODED ? s.start[part][lane >> 2] : 0.0f;
        own.whole[part] = CODED ? s.whole[part][lane >> 2] : 0.0f;
    }
    bool none = false;
    for (u32 block = start; block < task.end; block += stride) {
        u32 next = block + stride;
        none |= score_group(task, s, own, min(block, most), group, min(next, most), next < task.end);
    }
    if (!__any_sync(FULL, none)) return;
    // Not a number may be the split's own (∞ · 0): such blocks are scored again, coordinate by coordinate.
    __syncwarp();
    for (u32 from = start; from < task.end; from += stride) {
        u32 block = max(min(from, most), task.first), end = min(min(from, most) + GROUP_BLOCKS, task.end);
        for (; block < end; block++) {
            float x = lane < task.count ? task.logits[(u64)lane * task.blocks + block] : 0.0f;
            if (!__any_sync(FULL, isnan(x))) continue;
            plain_block(task.summaries, task.lifted, task.bias, task.logits, task.blocks, task.count, block);
        }
    }
}

#endif

// logits [pools][queries][blocks], candidates only; lifted [pools][queries][DIM], queries a multiple of 8. The thread
// blocks of a pool have `share` blocks each; neighbours have the same blocks and other queries.
extern "C" __global__ void __launch_bounds__(SCORE_THREADS, MIN_CTAS)
    score_blocks(const u8* summaries, const float* lifted, const float* bias, const u32* control, u32 kv_heads,
                 u32 blocks, u32 queries, u32 share, float* logits) {
    u32 pool = blockIdx.y, eights = queries / QUERIES, from = blockIdx.x % eights * QUERIES;
    SeqControl c = seq_control(control, pool / kv_heads);
    u32 first = c.first + blockIdx.x / eights * share, end = min(c.end, first + share), all = query_count(c);
    if (first >= c.end || from >= all) return;
    u64 place = (u64)pool * queries + from;
    summaries += (u64)pool * blocks * SUMMARY_BYTES;
    lifted += place * DIM;
    bias += place;
    logits += place * blocks;
    u32 count = min(all - from, QUERIES);
#if MMA
    if (blocks >= GROUP_BLOCKS) {
        score_all({summaries, lifted, bias, logits, blocks, count, first, end});
        return;
    }
#endif
    for (u32 block = first + (threadIdx.x >> 5); block < end; block += SCORE_THREADS / 32) {
        plain_block(summaries, lifted, bias, logits, blocks, count, block);
    }
}
