// Running softmax sums of the queries of one KV head, on tensor cores, over tiles of attend_ring.cu. A tile's tokens are the
// rows and eight queries the columns, so that one query costs what eight do: logits K q, then outputs V' p. Softmax weights
// enter as two bfloat16, which together keep 16 bits. Roundings are spelt out: a query's sums are the same bits whatever
// QT is.

__device__ __forceinline__ void load_matrices(u32* a, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_transposed(u32* a, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ u32 transpose(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Sums of 8 QT queries; of each eight, this lane has two, and of their outputs two coordinates of every 16.
template <int N, int QT>
struct Sums {
    u32 q[2 * N][2];
    float acc[QT][2 * N][4];
    float max[QT][2], weight[QT][2];
    float tile_max[QT][2], tile_weight[QT][2];
};

// Two bfloat16, `low` in the lower half.
__device__ __forceinline__ u32 to_halves(float high, float low) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

__device__ __forceinline__ float column_max(float x) {
#pragma unroll
    for (int at = 4; at < 32; at *= 2) x = fmaxf(x, __shfl_xor_sync(FULL, x, at));
    return x;
}

__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
    for (int at = 4; at < 32; at *= 2) x = __fadd_rn(x, __shfl_xor_sync(FULL, x, at));
    return x;
}

// Logits to weights of one eight queries, and the factors of what was summed before. p: (token, query) pairs (row g, 2t),
// (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ __forceinline__ void soften(float* p, float scale, float* max, float* weight, float* tile_max, float* tile_weight,
                                       float* before, bool masses) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float top = __fmul_rn(column_max(fmaxf(p[j], p[2 + j])), scale);
        // -inf - -inf would be NaN: where nothing is seen, 0 does as the maximum.
        float against = top == -INF ? 0.0f : top;
        float x = exp2_of(__fmaf_rn(p[j], scale, -against)), y = exp2_of(__fmaf_rn(p[2 + j], scale, -against));
        float both = fmaxf(max[j], top), sum = __fadd_rn(x, y);
        before[j] = max[j] == both ? 1.0f : exp2_of(__fsub_rn(max[j], both));
        float add = top == both ? 1.0f : exp2_of(__fsub_rn(top, both));
        max[j] = both;
        weight[j] = __fmaf_rn(weight[j], before[j], __fmul_rn(sum, add));
        tile_max[j] = top;
        if (masses) tile_weight[j] = column_sum(sum);
        p[j] = __fmul_rn(x, add);
        p[2 + j] = __fmul_rn(y, add);
    }
}

// Adds the tile at `data`. Of a whole tile every query sees every token, else query j of eight m sees row g + 8 h if
// sees(m, j, h), and `there` are the halves of value words that exist. What it returns hangs on the last words read.
template <int N, int QT, typename Sees>
__device__ __forceinline__ u32 add_tile(Sums<N, QT>& f, const uint2* queries, u32 data, float scale, bool masses, bool whole,
                                        const u32* there, Sees sees) {
    u32 lane = threadIdx.x & 31, read = 0;
    float s[QT][4], rest[QT][4];
#pragma unroll
    for (int m = 0; m < QT; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[m][i] = rest[m][i] = 0.0f;
    }
#pragma unroll
    for (int c = 0; c < 2 * N; c++) {
        u32 a[4];
        load_matrices(a, data + unit_at<N>(lane % 16, 2 * c + lane / 16));
#pragma unroll
        for (int m = 0; m < QT; m++) {
            float* to = c % 2 ? rest[m] : s[m];
            if (QT > 1) {
                uint2 q = queries[(c * QT + m) * 32];
                mma(to, a[0], a[1], a[2], a[3], q.x, q.y);
            } else {
                mma(to, a[0], a[1], a[2], a[3], f.q[c][0], f.q[c][1]);
            }
        }
    }
    u32 upper[QT][2], lower[QT][2];
    bool changed = false;
    float before[QT][2];
#pragma unroll
    for (int m = 0; m < QT; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[m][i] = __fadd_rn(s[m][i], rest[m][i]);
            if (!whole && !sees(m, i % 2, i / 2)) s[m][i] = -INF;
        }
        soften(s[m], scale, f.max[m], f.weight[m], f.tile_max[m], f.tile_weight[m], before[m], masses);
        changed = changed || before[m][0] != 1.0f || before[m][1] != 1.0f;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 bits = to_halves(s[m][2 * h + 1], s[m][2 * h]);
            upper[m][h] = transpose(bits);
            lower[m][h] = transpose(to_halves(__fsub_rn(s[m][2 * h + 1], high(bits)), __fsub_rn(s[m][2 * h], low(bits))));
        }
    }
    if (__any_sync(FULL, changed)) {
#pragma unroll
        for (int m = 0; m < QT; m++) {
#pragma unroll
            for (int c = 0; c < 2 * N; c++) {
#pragma unroll
                for (int i = 0; i < 4; i++) f.acc[m][c][i] = __fmul_rn(f.acc[m][c][i], before[m][i % 2]);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < 2 * N; c++) {
        u32 a[4];
        load_transposed(a, data + Layout<N>::HALF + unit_at<N>(lane % 8 + 8 * (lane / 16), 2 * c + lane / 8 % 2));
        read ^= a[0];
        if (!whole) {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] &= there[i / 2];
        }
#pragma unroll
        for (int m = 0; m < QT; m++) {
            mma(f.acc[m][c], a[0], a[1], a[2], a[3], upper[m][0], upper[m][1]);
            mma(f.acc[m][c], a[0], a[1], a[2], a[3], lower[m][0], lower[m][1]);
        }
    }
    return read;
}

// ln of an entry's mass out of its tiles'; maxima and weights in base 2.
__device__ __forceinline__ float add_mass(float lse, float max, float weight) {
    float other = max == -INF ? -INF : (max + log2f(weight)) * 0.693147180559945f;
    if (lse == -INF) return other;
    if (other == -INF) return lse;
    float top = fmaxf(lse, other);
    return top + logf(expf(lse - top) + expf(other - top));
}
