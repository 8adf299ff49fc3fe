// Attention on tensor cores; uses what attend.cu defines.
//
// For heads of 32 N coordinates and blocks of whole 16 tokens. A warp has 16 queries and reads a
// tile of 16 keys and values straight into registers: neither their coordinates nor the order of the values' columns is
// the instruction's, but both sides of a product are permuted alike, so that lanes read 8 or 16 bytes at once. Softmax
// weights enter as two bfloat16, which together keep 16 bits.
struct Queries16 {
    // Of this lane's two queries: row of q (and of out), and whether they exist.
    u32 place[2];
    bool there[2];
};

template <int N>
struct Fragments {
    uint4 q[2][N];
    float acc[4 * N][4];
    float max[2], weight[2];
    float tile_max[2], tile_weight[2];
};

template <int N>
__device__ __forceinline__ void start16(Fragments<N>& f, const half_t* q, const Queries16& of) {
    u32 t = threadIdx.x & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        f.max[h] = -INF;
        f.weight[h] = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            f.q[h][i] = make_uint4(0, 0, 0, 0);
            if (of.there[h]) f.q[h][i] = *(const uint4*)(q + (u64)of.place[h] * 32 * N + 32 * i + 8 * t);
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * N; i++) f.acc[i][0] = f.acc[i][1] = f.acc[i][2] = f.acc[i][3] = 0.0f;
}

__device__ __forceinline__ u32 pack2(half_t a, half_t b) { return (u32)a | (u32)b << 16; }

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(FULL, x, 1);
    return x + __shfl_xor_sync(FULL, x, 2);
}

// Adds n <= 16 tokens that lie `stride` apart; sees(h, token) says whether this lane's query h sees one.
template <int N, typename Sees>
__device__ __forceinline__ void step16(Fragments<N>& f, const half_t* k, const half_t* v, u64 stride, u32 n, float scale,
                                       Sees sees) {
    u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    uint4 key[2][N];
    uint2 value[N][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 token = 8 * h + g;
#pragma unroll
        for (int i = 0; i < N; i++) {
            key[h][i] = make_uint4(0, 0, 0, 0);
            if (token < n) key[h][i] = *(const uint4*)(k + token * stride + 32 * i + 8 * t);
        }
    }
#pragma unroll
    for (int w = 0; w < 4; w++) {
        u32 token = 2 * t + (w & 1) + 8 * (w >> 1);
#pragma unroll
        for (int i = 0; i < N; i++) {
            value[i][w] = make_uint2(0, 0);
            if (token < n) value[i][w] = *(const uint2*)(v + token * stride + 32 * i + 4 * g);
        }
    }
    float s[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s[h][0] = s[h][1] = s[h][2] = s[h][3] = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            mma(s[h], f.q[0][i].x, f.q[1][i].x, f.q[0][i].y, f.q[1][i].y, key[h][i].x, key[h][i].y);
            mma(s[h], f.q[0][i].z, f.q[1][i].z, f.q[0][i].w, f.q[1][i].w, key[h][i].z, key[h][i].w);
        }
    }
    // s[h][2 j + c]: query j, token 8 h + 2 t + c.
    u32 upper[4], lower[4];
    float before[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float top = -INF, x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 token = 8 * (i >> 1) + 2 * t + (i & 1);
            bool seen = token < n && sees(j, token);
            x[i] = seen ? s[i >> 1][2 * j + (i & 1)] * scale : -INF;
            top = fmaxf(top, x[i]);
        }
        top = quad_max(top);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = expf(x[i] - (top == -INF ? 0.0f : top));
            sum += x[i];
        }
        sum = quad_sum(sum);
        f.tile_max[j] = top;
        f.tile_weight[j] = sum;
        float both = fmaxf(f.max[j], top);
        before[j] = f.max[j] == both ? 1.0f : expf(f.max[j] - both);
        float add = top == both ? 1.0f : expf(top - both);
        f.max[j] = both;
        f.weight[j] = f.weight[j] * before[j] + sum * add;
        half_t high[4], rest[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float p = x[i] * add;
            high[i] = to_half(p);
            rest[i] = to_half(p - to_float(high[i]));
        }
        upper[j] = pack2(high[0], high[1]);
        upper[2 + j] = pack2(high[2], high[3]);
        lower[j] = pack2(rest[0], rest[1]);
        lower[2 + j] = pack2(rest[2], rest[3]);
    }
    if (__any_sync(FULL, before[0] != 1.0f || before[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 4 * N; i++) {
            f.acc[i][0] *= before[0];
            f.acc[i][1] *= before[0];
            f.acc[i][2] *= before[1];
            f.acc[i][3] *= before[1];
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 pick = j & 1 ? 0x7632 : 0x5410;
            u32 b0 = j < 2 ? __byte_perm(value[i][0].x, value[i][1].x, pick) : __byte_perm(value[i][0].y, value[i][1].y, pick);
            u32 b1 = j < 2 ? __byte_perm(value[i][2].x, value[i][3].x, pick) : __byte_perm(value[i][2].y, value[i][3].y, pick);
            mma(f.acc[4 * i + j], upper[0], upper[1], upper[2], upper[3], b0, b1);
            mma(f.acc[4 * i + j], lower[0], lower[1], lower[2], lower[3], b0, b1);
        }
    }
}

// Coordinate of element e (0 .. 1) of column group c: that of acc[c][e] and acc[c][2 + e].
__device__ __forceinline__ u32 coordinate_of(u32 c, u32 e) { return 32 * (c / 4) + 4 * (2 * (threadIdx.x & 3) + e) + c % 4; }
