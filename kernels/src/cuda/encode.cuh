// Keys of a block to its stored summary, bit for bit core's `storage::encode`; all threads of a block together, in whole
// warps. Compiled for one stored form, see storage.cuh.

#define NAN_HALF 0x7fc0u

// Towards -inf or, `up`, towards +inf.
__device__ __forceinline__ half_t to_half_towards(float x, bool up) {
    if (isnan(x)) return NAN_HALF;
    u32 bits = __float_as_uint(x), cut = bits >> 16;
    // Cutting rounds towards zero; one more unit in the last place rounds away from it.
    bool away = up == (bits >> 31 == 0);
    return cut + ((bits & 0xffff) != 0 && away);
}

#if STORAGE == STORAGE_AFFINE
struct Line {
    half_t lo, step;
};

__device__ __forceinline__ float line_at(Line l, u32 code) {
    return __fadd_rn(to_float(l.lo), __fmul_rn(to_float(l.step), (float)code));
}

// From at or below the least of x[from .. end] to at or above the largest; one warp.
__device__ __forceinline__ Line line_through(const float* x, u32 from, u32 end, bool below) {
    float least = INF, most = -INF;
    bool wild = false;
    for (u32 i = from + (threadIdx.x & 31); i < end; i += 32) {
        least = fminf(least, x[i]);
        most = fmaxf(most, x[i]);
        wild |= !(fabsf(x[i]) < INF);
    }
    if (from >= end) return {0, 0};
    if (__any_sync(FULL, wild)) return {NAN_HALF, 0};
    least = -warp_max(-least) + 0.0f;
    most = warp_max(most);
    Line l = {to_half_towards(least, false), 0};
    if (!below && l.lo == 0xff80u) l.lo = 0xff7fu;
    double range = (double)most - (double)to_float(l.lo);
    if (l.lo == 0xff80u || !(range > 0.0)) return l;
    l.step = to_half_towards(__double2float_ru(range / (double)TOP_CODE), true);
    while (line_at(l, TOP_CODE) < most) l.step++;
    return l;
}

// The nearest code, or (`up`) the lowest that is not below x, or (`down`) the highest that is not above.
__device__ __forceinline__ u32 line_code(Line l, float x, bool up, bool down) {
    double lo = to_float(l.lo), step = to_float(l.step);
    if (!(fabs(lo) < INF) || step == 0.0) return 0;
    int code = (int)fmin(fmax(floor(((double)x - lo) / step), 0.0), (double)TOP_CODE);
    while (code > 0 && line_at(l, code) > x) code--;
    while (code < TOP_CODE && line_at(l, code + 1) <= x) code++;
    if (down) return code;
    int next = min(code + 1, TOP_CODE);
    double here = line_at(l, code), there = line_at(l, next);
    return (up ? here < x : fabs(there - x) < x - here) ? next : code;
}
#endif

#if STORAGE == STORAGE_NORMAL
// The byte nearest to the root mean square of x[DIM]; one thread.
__device__ __forceinline__ u32 scale_byte(const float* x) {
    double squares = 0.0;
    for (u32 i = 0; i < DIM; i++) squares = __dadd_rn(squares, __dmul_rn(x[i], x[i]));
    if (!(squares < INF)) return 255;
    float rms = fminf((float)sqrt(squares / (double)DIM), 3.402823466e38f);
    if (rms < normal_scale(1) / 2.0f) return 0;
    int octave = (int)(__float_as_uint(rms) >> 23) - 127;
    int byte = min(max(SCALE_ONE + 16 * octave, 1), 254);
    // The middle of two neighbouring scales, in octaves, is their geometric mean.
    for (; byte < 254; byte++)
        if (__dmul_rn(rms, rms) < __dmul_rn(normal_scale(byte), normal_scale(byte + 1))) break;
    return byte;
}
#endif

// x [VECTORS][DIM] in shared memory to out [SUMMARY_BYTES].
__device__ __forceinline__ void store_block(const float* x, u8* out) {
#if STORAGE == STORAGE_F32
    for (u32 i = threadIdx.x; i < VECTORS * DIM; i += blockDim.x) {
        u32 bits = __float_as_uint(x[i]);
        for (int b = 0; b < 4; b++) out[4 * i + b] = bits >> (8 * b);
    }
#elif STORAGE == STORAGE_BF16
    for (u32 i = threadIdx.x; i < VECTORS * DIM; i += blockDim.x) {
        half_t bits = isnan(x[i]) ? NAN_HALF : PARTS == 1 ? to_half(x[i]) : to_half_towards(x[i], i % DIM < UPPER);
        out[2 * i] = bits;
        out[2 * i + 1] = bits >> 8;
    }
#else
#if STORAGE == STORAGE_AFFINE
    for (u32 i = threadIdx.x / 32; i < VECTORS * PARTS; i += blockDim.x / 32) {
        u32 v = i / PARTS, part = i % PARTS;
        Line l = line_through(x + v * DIM, part ? UPPER : 0, part == PARTS - 1 ? DIM : UPPER, part == 1);
        u8* to = out + VECTORS * CODE_BYTES + v * SCALE_BYTES + 4 * part;
        if (threadIdx.x % 32 == 0) {
            to[0] = l.lo;
            to[1] = l.lo >> 8;
            to[2] = l.step;
            to[3] = l.step >> 8;
        }
    }
#else
    for (u32 v = threadIdx.x; v < VECTORS; v += blockDim.x) out[VECTORS * CODE_BYTES + v] = scale_byte(x + v * DIM);
#endif
    __syncthreads();
    for (u32 at = threadIdx.x; at < VECTORS * CODE_BYTES; at += blockDim.x) {
        u32 v = at / CODE_BYTES, from = at % CODE_BYTES * (8 / BITS), byte = 0;
        const float* row = x + v * DIM;
        const u8* scales = scales_of(out, v);
        for (u32 i = from; i < min(from + 8 / BITS, (u32)DIM); i++) {
            u32 code;
#if STORAGE == STORAGE_AFFINE
            bool second = PARTS == 2 && i >= UPPER;
            const u8* line = scales + (second ? 4 : 0);
            code = line_code({half_at(line), half_at(line + 2)}, row[i], PARTS == 2 && !second, second);
#else
            float unit = normal_scale(scales[0]) * CODE_STEP;
            code = unit > 0.0f ? (u32)fminf(fmaxf(floorf(row[i] / unit + (TOP_CODE / 2 + 1)), 0.0f), TOP_CODE) : 0;
#endif
            byte |= code << ((i - from) * BITS);
        }
        out[at] = byte;
    }
#endif
}

// keys [TOKENS][HEAD_DIM] and vectors [VECTORS][DIM] in shared memory; keys are there.
__device__ __forceinline__ void encode_block(const float* fit, const float* keys, float* vectors, u8* out) {
    summary_encode(fit, keys, vectors);
    __syncthreads();
    store_block(vectors, out);
}
