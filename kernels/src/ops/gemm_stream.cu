// Products of few rows at the speed of the weight's bytes, on devices with clusters and a tensor copy engine (sm_90+).
//
// A cluster of two thread blocks has a range of weight rows, and each of its blocks half of the columns. One warp
// keeps a ring of stages full: 128 weight rows x 64 columns and the same columns of x. Four warps, 32 weight rows each,
// multiply (weight = A, x = B). At the end of 128 weight rows their sums go to the block that owns the rows, which adds the
// halves in order. So a row's result depends on that row alone, and not on how many there are.
// The ring is filled with weights before the kernel waits for whoever makes x.
struct __align__(64) TensorMap {
    u64 opaque[16];
};

#if __CUDA_ARCH__ >= 900
namespace gemm_ring {

__device__ __forceinline__ u32 shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// `bar` is an address in the cluster's shared memory.
__device__ __forceinline__ void arrive_far(u32 bar) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void wait(u32 bar, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
            "selp.b32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (!done);
}

__device__ __forceinline__ void wait_far(u32 bar, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
            "selp.b32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (!done);
}

// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ u32 in_block(u32 address, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

__device__ __forceinline__ void put(u32 address, float a, float b) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}

__device__ __forceinline__ void load(u32 to, const TensorMap* map, u32 chunk, u32 row, u32 bar, u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%5, %3, %2}], [%4], %6;" ::"r"(to),
        "l"(map), "r"(chunk), "r"(row), "r"(bar), "r"(0), "l"(policy)
        : "memory");
}

__device__ __forceinline__ void tiles(u32* r, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// One lane of a whole warp.
__device__ __forceinline__ bool elected() {
    u32 is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(is));
    return is;
}

}  // namespace gemm_ring
#endif

// What a product is of, and the room of its ring.
struct GemmJob {
    const float* bias;
    void* out;
    u32 rows, n, k, accumulate, stages, spare;
};

// NT: tiles of 8 rows of x. RANKS: thread blocks of a cluster, which divide the columns. D: chunks of 64 columns of a stage.
// SWIGLU: the weight's first half are gates, the second factors; out[row][n / 2] in bfloat16.
// tall: boxes of a whole pass; low: boxes of one unit.
template <int NT, int RANKS, int D, bool SWIGLU>
__device__ __forceinline__ void gemm_stream(const TensorMap* tall, const TensorMap* low, const TensorMap* x_map,
                                            const GemmJob& job) {
#if __CUDA_ARCH__ >= 900
    using namespace gemm_ring;
    const u32 UNIT = 32, PASS = SWIGLU ? 2 : 4, TILE = 16384, X_TILE = NT * 1024, STAGE = D * (TILE + X_TILE);
    const u32 OWN = 128 / RANKS, PITCH = 8 * NT, WARPS = 4, SWIZZLE = 4 * NT - 1;
    extern __shared__ __align__(1024) u8 room[];
    const u32 stages = job.stages;
    float* sums = (float*)(room + stages * STAGE);
    u32 ring = shared(room), inbox = shared(sums);
    u32 bars = inbox + 128 * PITCH * 4;
    u32 full = bars, empty = full + 8 * stages, ready = empty + 8 * stages, freed = ready + 8;
    u32 rank = blockIdx.x % RANKS, cluster = blockIdx.x / RANKS, clusters = gridDim.x / RANKS;
    u32 warp = __shfl_sync(FULL, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;

    // Units of 32 weight rows (32 gates and their 32 factors) of this cluster, and groups of columns of this block.
    u32 outputs = SWIGLU ? job.n / 2 : job.n;
    u32 all = (outputs + UNIT - 1) / UNIT, groups = (job.k + 64 * D - 1) / (64 * D);
    u32 unit0 = (u32)((u64)cluster * all / clusters), unit1 = (u32)((u64)(cluster + 1) * all / clusters);
    u32 c0 = rank * groups / RANKS, c1 = (rank + 1) * groups / RANKS;

    if (threadIdx.x == 0) {
        for (u32 s = 0; s < stages; s++) {
            init(full + 8 * s, 1);
            init(empty + 8 * s, WARPS);
        }
        init(ready, 8);
        for (u32 q = 0; q < RANKS; q++) init(freed + 8 * q, WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    let_next_start();

    if (warp == WARPS) {
        const bool one = elected();
        // Weights are read once and leave the L2 cache first; x is read by all.
        const u64 stream = 0x12F0000000000000ull, keep = 0x1000000000000000ull;
        auto weights = [&](u32 u, u32 c, u32 s) {
            u32 units = unit1 - u, bar = full + 8 * s, to = ring + s * STAGE;
            if (units >= PASS) {
                expect(bar, STAGE);
                load(to, tall, c * D, u * UNIT, bar, stream);
                if (SWIGLU) load(to + D * TILE / 2, tall, c * D, outputs + u * UNIT, bar, stream);
            } else {
                expect(bar, units * (SWIGLU ? 2 : 1) * D * TILE / 4 + D * X_TILE);
                for (u32 j = 0; j < units; j++) load(to + j * D * TILE / 4, low, c * D, (u + j) * UNIT, bar, stream);
                if (SWIGLU)
                    for (u32 j = 0; j < units; j++)
                        load(to + D * TILE / 2 + j * D * TILE / 4, low, c * D, outputs + (u + j) * UNIT, bar, stream);
            }
        };
        auto inputs = [&](u32 c, u32 s) { load(ring + s * STAGE + D * TILE, x_map, c * D, 0, full + 8 * s, keep); };
        if (c0 < c1) {
            u32 u = unit0, c = c0, first = 0;
            for (; first < stages && u < unit1; first++) {
                if (one) weights(u, c, first);
                if (++c == c1) {
                    c = c0;
                    u += PASS;
                }
            }
            wait_for_last();
            u32 xc = c0;
            for (u32 i = 0; i < first; i++) {
                if (one) inputs(xc, i);
                if (++xc == c1) xc = c0;
            }
            u32 s = 0, phase = 0;
            while (u < unit1) {
                wait(empty + 8 * s, phase);
                if (one) {
                    weights(u, c, s);
                    inputs(c, s);
                }
                if (++c == c1) {
                    c = c0;
                    u += PASS;
                }
                if (++s == stages) {
                    s = 0;
                    phase ^= 1;
                }
            }
        }
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }

    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    wait_for_last();
    u32 g = lane >> 2, t = lane & 3;
    // The lane's addresses for ldmatrix: of A (low rows, high rows; low columns, high columns) and of B. In a stage the units
    // are [D][rows][64]: of a whole pass together (SWIGLU: of its gates, of its factors), of others each by itself.
    u32 a_half = lane >> 4, sw = lane & 7;
    u32 b_row = NT == 1 ? lane & 7 : (lane & 7) + (lane >> 4) * 8, b_half = NT == 1 ? lane >> 3 : lane >> 3 & 1;
    u32 s = 0, phase = 0, pass = 0;
    const u32 limit = min(outputs, unit1 * UNIT);
    for (u32 u = unit0; u < unit1; u += PASS, pass++) {
        u32 units = min(unit1 - u, PASS), next = unit1 - min(unit1, u + PASS);
        bool works = (SWIGLU ? warp & 1 : warp) < units;
        u32 a_at = (lane & 15) * 128, a_step;
        if (units == PASS) {
            a_at += SWIGLU ? (warp >> 1) * D * TILE / 2 + (warp & 1) * UNIT * 128 : warp * UNIT * 128;
            a_step = SWIGLU ? TILE / 2 : TILE;
        } else {
            a_at += SWIGLU ? (warp >> 1) * D * TILE / 2 + (warp & 1) * D * TILE / 4 : warp * D * TILE / 4;
            a_step = TILE / 4;
        }
        float d[2][NT][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int j = 0; j < NT; j++) d[m][j][0] = d[m][j][1] = d[m][j][2] = d[m][j][3] = 0.0f;
        for (u32 c = c0; c < c1; c++) {
            wait(full + 8 * s, phase);
            if (works) {
#pragma unroll
                for (int e = 0; e < 4 * D; e++) {
                    u32 k16 = e % 4, a_base = ring + s * STAGE + a_at + e / 4 * a_step;
                    u32 b_base = ring + s * STAGE + D * TILE + e / 4 * X_TILE + b_row * 128;
                    u32 a[2][4], b[NT < 2 ? 4 : 2 * NT];
                    tiles(a[0], a_base + (((2 * k16 + a_half) ^ sw) << 4));
                    tiles(a[1], a_base + 16 * 128 + (((2 * k16 + a_half) ^ sw) << 4));
                    if (NT == 1) {
                        tiles(b, b_base + (((2 * (k16 & 2) + b_half) ^ sw) << 4));
                    } else {
#pragma unroll
                        for (int j = 0; j < NT / 2; j++)
                            tiles(b + 4 * j, b_base + j * 2048 + (((2 * k16 + b_half) ^ sw) << 4));
                    }
#pragma unroll
                    for (int j = 0; j < NT; j++) {
                        u32 at = NT == 1 ? 2 * (k16 & 1) : 2 * j;
                        mma(d[0][j], a[0][0], a[0][1], a[0][2], a[0][3], b[at], b[at + 1]);
                        mma(d[1][j], a[1][0], a[1][1], a[1][2], a[1][3], b[at], b[at + 1]);
                    }
                }
            }
            __syncwarp();
            if (lane == 0) arrive(empty + 8 * s);
            if (++s == stages) {
                s = 0;
                phase ^= 1;
            }
        }
        // To the owners of these rows: rows of the pass, or pairs of gate and factor, are dealt out in order.
#pragma unroll
        for (int m = 0; m < 2; m++) {
            u32 row = SWIGLU ? (warp & 1) * UNIT + 16 * m : warp * UNIT + 16 * m;
            u32 each = SWIGLU ? OWN / 2 : OWN, owner = row / each, at = row % each + (SWIGLU ? (warp >> 1) * each : 0);
            if (owner * each >= units * UNIT) continue;
            if (pass) wait_far(freed + 8 * owner, (pass - 1) & 1);
            if (works) {
                u32 to = in_block(inbox, owner) + rank * OWN * PITCH * 4;
                u32 low_row = at + g, high_row = at + g + 8;
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    put(to + (low_row * PITCH + 2 * ((4 * j + t) ^ (low_row & SWIZZLE))) * 4, d[m][j][0], d[m][j][1]);
                    put(to + (high_row * PITCH + 2 * ((4 * j + t) ^ (high_row & SWIZZLE))) * 4, d[m][j][2], d[m][j][3]);
                }
            }
            __syncwarp();
            if (lane == 0) arrive_far(in_block(ready, owner));
        }
        // This block's own rows.
        u32 each = SWIGLU ? OWN / 2 : OWN;
        if (rank * each >= units * UNIT) continue;
        wait_far(ready, pass & 1);
        auto total = [&](u32 row, u32 r) {
            u32 at = row * PITCH + 2 * ((r >> 1) ^ (row & SWIZZLE)) + (r & 1);
            float sum = sums[at];
#pragma unroll
            for (int p = 1; p < RANKS; p++) sum += sums[p * OWN * PITCH + at];
            return sum;
        };
        for (u32 i = threadIdx.x; i < each * job.rows; i += 32 * WARPS) {
            u32 row = i % each, r = i / each, col = u * UNIT + rank * each + row;
            if (col >= limit) continue;
            float sum = total(row, r);
            if (job.bias) sum += job.bias[col];
            if (SWIGLU) {
                float factor = total(each + row, r);
                if (job.bias) factor += job.bias[outputs + col];
                ((half_t*)job.out)[(u64)r * outputs + col] = to_half(sum / (1.0f + expf(-sum)) * factor);
            } else {
                float* to = (float*)job.out + (u64)r * outputs + col;
                if (job.accumulate) sum += *to;
                *to = sum;
            }
        }
        if (rank * each < next * UNIT) {
            __syncwarp();
            if (lane < RANKS) arrive_far(in_block(freed + 8 * rank, lane));
        }
    }
#endif
}

// RANKS of gemm/stream.rs.
#if __CUDA_ARCH__ >= 900
#define GEMM_CLUSTER __cluster_dims__(2, 1, 1)
#else
#define GEMM_CLUSTER
#endif
#define GEMM_STREAM(NT)                                                                                           \
    extern "C" __global__ void GEMM_CLUSTER __launch_bounds__(160, 2)                                             \
        gemm_stream_##NT(const __grid_constant__ TensorMap tall, const __grid_constant__ TensorMap low,           \
                         const __grid_constant__ TensorMap x_map, GemmJob job) {                                  \
        gemm_stream<NT, 2, 1, false>(&tall, &low, &x_map, job);                                                   \
    }
GEMM_STREAM(1)
GEMM_STREAM(2)
GEMM_STREAM(4)
GEMM_STREAM(8)
