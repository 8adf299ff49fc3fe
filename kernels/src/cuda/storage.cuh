// Stored summaries: the twin of core's `storage`. Compiled for one stored form: STORAGE, BITS, VECTORS, DIM, UPPER (the
// coordinates of the first part), PARTS, CODE_BYTES and SCALE_BYTES (of a vector), SUMMARY_BYTES (of a block).

#define STORAGE_F32 0
#define STORAGE_BF16 1
#define STORAGE_AFFINE 2
#define STORAGE_NORMAL 3

// Sixteenths of an octave.
__device__ const float SIXTEENTHS[16] = {
    1.0f,         1.044273782f, 1.090507733f, 1.138788635f, 1.189207115f, 1.241857812f, 1.296839555f, 1.354255547f,
    1.414213562f, 1.476826146f, 1.542210825f, 1.610490332f, 1.681792831f, 1.756252160f, 1.834008086f, 1.915206561f,
};

#define SCALE_ONE 94

// The root mean square that a scale byte stands for.
__device__ __forceinline__ float normal_scale(u32 byte) {
    if (byte == 0) return 0.0f;
    if (byte == 255) return NAN_F;
    int sixteenths = (int)byte - SCALE_ONE;
    return __int_as_float(__float_as_int(SIXTEENTHS[sixteenths & 15]) + (sixteenths >> 4) * (1 << 23));
}

__device__ __forceinline__ half_t half_at(const u8* p) { return (half_t)(p[0] | p[1] << 8); }

#if STORAGE == STORAGE_AFFINE || STORAGE == STORAGE_NORMAL
#define TOP_CODE ((1 << BITS) - 1)

__device__ __forceinline__ u32 code_at(const u8* codes, u32 i) {
    u32 at = i * BITS;
    return codes[at >> 3] >> (at & 7) & TOP_CODE;
}
#endif

// Scales of vector v of a stored block.
__device__ __forceinline__ const u8* scales_of(const u8* block, u32 v) {
    return block + VECTORS * CODE_BYTES + v * SCALE_BYTES;
}

// Coordinate i of vector v of a stored block. Products and sums are rounded one by one, as the reference codec does.
__device__ __forceinline__ float coordinate(const u8* block, u32 v, u32 i) {
    const u8* codes = block + v * CODE_BYTES;
#if STORAGE == STORAGE_F32
    return __uint_as_float(half_at(codes + 4 * i) | (u32)half_at(codes + 4 * i + 2) << 16);
#elif STORAGE == STORAGE_BF16
    return to_float(half_at(codes + 2 * i));
#elif STORAGE == STORAGE_AFFINE
    const u8* line = scales_of(block, v) + (i < UPPER ? 0 : 4 * (PARTS - 1));
    return __fadd_rn(to_float(half_at(line)), __fmul_rn(to_float(half_at(line + 2)), (float)code_at(codes, i)));
#else
    float level = __fmul_rn((float)code_at(codes, i) - TOP_CODE / 2.0f, LEVEL_STEP);
    return __fmul_rn(normal_scale(scales_of(block, v)[0]), level);
#endif
}
