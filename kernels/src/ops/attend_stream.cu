// Decode attention at the speed of its bytes, for heads of 32 N coordinates and blocks of whole 16 tokens; uses what
// attend_ring.cu and attend_sums.cu define.
//
// Thread blocks stay: one warp copies the tiles of one item after the other into shared memory, four warps divide an item's
// entries and consume their tiles. The sums of the four are added in the warps' order, those of a pool's items in the items'
// order by whoever is last. So neither slots nor the batch nor the number of thread blocks leaves a trace.

__device__ __forceinline__ void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// Row of q and out (and of block_lse) of a query.
__device__ __forceinline__ u32 place_of(const Stream& a, const Part& of, u32 query) {
    u32 group = a.heads / a.kv_heads, head = of.pool % a.kv_heads;
    return (of.row0 + query / group) * a.heads + head * group + query % group;
}

template <int N, int QT>
__device__ __forceinline__ void start_item(Sums<N, QT>& f, const Stream& a, const Item& item, uint2* queries) {
    u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, way = threadIdx.x >> 5;
#pragma unroll
    for (int m = 0; m < QT; m++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            f.max[m][j] = -INF;
            f.weight[m][j] = 0.0f;
        }
        u32 query = item.of.tile * 8 * QT + 8 * m + g;
        bool there = query < item.of.queries;
        const u32* q = (const u32*)(a.q + (u64)(there ? place_of(a, item.of, query) : 0) * 32 * N);
#pragma unroll
        for (int c = 0; c < 2 * N; c++) {
#pragma unroll
            for (int i = 0; i < 4; i++) f.acc[m][c][i] = 0.0f;
            uint2 words = make_uint2(0, 0);
            if (QT == 1 || m == way) {
                if (there) words = make_uint2(q[8 * c + t], q[8 * c + 4 + t]);
            }
            if (QT > 1 && m == way) queries[(c * QT + m) * 32] = words;
            if (QT == 1) {
                f.q[c][0] = words.x;
                f.q[c][1] = words.y;
            }
        }
    }
    if (QT > 1) consumers_sync();
}

// This warp's entries of an item.
template <int N, int QT>
__device__ __forceinline__ void consume(Sums<N, QT>& f, const Stream& a, const Item& item, const Ring& ring, Cursor& c,
                                        const uint2* queries) {
    u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, way = threadIdx.x >> 5, group = a.heads / a.kv_heads;
    // Whether query j of eight m sees a token behind the committed ones. Tails are few: masks are read when they are needed.
    auto sees_row = [&](int m, int j, u32 row) {
        u32 query = item.of.tile * 8 * QT + 8 * m + 2 * t + j;
        return query < item.of.queries && row < 32 && (a.ancestors[item.of.row0 + query / group] >> row & 1);
    };
    for (u32 i = way; i < item.entries + (item.tail != 0); i += WAYS) {
        bool of_tail = i == item.entries, valid = of_tail || !(item.bad >> i & 1);
        u32 tokens = of_tail ? item.tail : a.block_tokens;
        float lse[QT][2];
#pragma unroll
        for (int m = 0; m < QT; m++) lse[m][0] = lse[m][1] = -INF;
        for (u32 at = 0; at < tokens; at += 16) {
            u32 n = min(tokens - at, 16u), there[2];
#pragma unroll
            for (int h = 0; h < 2; h++)
                there[h] = (2 * t + 8 * h < n ? 0xffffu : 0) | (2 * t + 1 + 8 * h < n ? 0xffff0000u : 0);
            u32 stage = way * ring.stages + c.at, filled = ring.barriers + 16 * stage;
            barrier_wait(filled, c.round);
            u32 read = add_tile<N, QT>(f, queries, ring.data + stage * 2 * Layout<N>::HALF, a.scale, a.lse != 0, !of_tail, there,
                                       [&](int m, int j, int h) {
                                           u32 token = g + 8 * h;
                                           if (token >= n) return false;
                                           token += at;
                                           return token < item.committed || sees_row(m, j, token - item.committed);
                                       });
            __syncwarp();
            if (lane == 0) barrier_arrive_after(filled + 8, read);
            advance(c, ring.stages);
            if (a.lse) {
#pragma unroll
                for (int m = 0; m < QT; m++) {
#pragma unroll
                    for (int j = 0; j < 2; j++) lse[m][j] = add_mass(lse[m][j], f.tile_max[m][j], f.tile_weight[m][j]);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < QT; m++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (!valid) f.weight[m][j] = NAN_F;
                u32 query = item.of.tile * 8 * QT + 8 * m + 2 * t + j;
                if (a.lse && g == 0 && query < item.of.queries) {
                    u64 row = (u64)place_of(a, item.of, query) * (a.slot_count + 1);
                    a.lse[row + (of_tail ? a.slot_count : item.entry + i)] = valid ? lse[m][j] : NAN_F;
                }
            }
        }
    }
}

// The item's sums of the warps, in their order and four queries at a time: to `part`, or out if the pool has no other.
template <int N, int QT>
__device__ __forceinline__ void finish_item(Sums<N, QT>& f, const Stream& a, const Item& item, float* sums, float* tops) {
    const u32 D = 32 * N, ROW = Layout<N>::ROW;
    u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, way = threadIdx.x >> 5;
    u32 coordinate = threadIdx.x;
    float* weights = tops + 4 * WAYS;
#pragma unroll
    for (int m = 0; m < QT; m++) {
        float total[2] = {column_sum(f.weight[m][0]), column_sum(f.weight[m][1])};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 from = item.of.tile * 8 * QT + 8 * m + 4 * half;
            if (from >= item.of.queries) break;
            consumers_sync();
            if (t / 2 == half) {
                u32 row = way * 4 + 2 * (t % 2);
#pragma unroll
                for (int c = 0; c < 2 * N; c++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) sums[(row + i % 2) * ROW + 16 * c + g + 8 * (i / 2)] = f.acc[m][c][i];
                }
                if (g < 2) {
                    // Not indexed by the lane: that would put them into local memory.
                    tops[row + g] = g ? f.max[m][1] : f.max[m][0];
                    weights[row + g] = g ? total[1] : total[0];
                }
            }
            consumers_sync();
            if (coordinate >= D) continue;
            for (u32 j = 0; j < min(item.of.queries - from, 4u); j++) {
                float top = fmaxf(fmaxf(tops[j], tops[4 + j]), fmaxf(tops[8 + j], tops[12 + j]));
                float against = top == -INF ? 0.0f : top, sum = 0.0f, weight = 0.0f;
#pragma unroll
                for (int w = 0; w < WAYS; w++) {
                    float factor = exp2_of(__fsub_rn(tops[4 * w + j], against));
                    sum = __fmaf_rn(sums[(w * 4 + j) * ROW + coordinate], factor, sum);
                    weight = __fmaf_rn(weights[4 * w + j], factor, weight);
                }
                if (item.of.splits == 1) {
                    a.out[(u64)place_of(a, item.of, from + j) * D + coordinate] = to_half(sum / weight);
                } else {
                    u64 place = ((u64)item.of.pool * a.query_tiles + item.of.tile) * a.splits + item.split;
                    float* to = a.part + (place * 8 * QT + 8 * m + 4 * half + j) * ROW;
                    to[coordinate] = sum;
                    if (coordinate == 0) *(float2*)(to + D) = make_float2(top, weight);
                }
            }
        }
    }
}

// Adds the sums of a pool's items in their order; a warp a query.
template <int N, int QT>
__device__ __forceinline__ void join_items(const Stream& a, const Part& of) {
    const u32 D = 32 * N, ROW = Layout<N>::ROW, STEP = 8 * QT * ROW;
    u32 lane = threadIdx.x & 31, from = of.tile * 8 * QT, n = min(of.queries - from, 8u * QT);
    const float* part = a.part + ((u64)of.pool * a.query_tiles + of.tile) * a.splits * STEP;
    for (u32 j = threadIdx.x >> 5; j < n; j += WAYS) {
        const float* row = part + (u64)j * ROW;
        // Maxima and weights of 32 splits, one a lane.
        float2 mine = lane < of.splits ? __ldcg((const float2*)(row + (u64)lane * STEP + D)) : make_float2(-INF, 0.0f);
        float top = mine.x, weight = 0.0f, sum[N];
        for (u32 s = 32 + lane; s < of.splits; s += 32) top = fmaxf(top, __ldcg(row + (u64)s * STEP + D));
        top = warp_max(top);
        float against = top == -INF ? 0.0f : top;
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = 0.0f;
        for (u32 at = 0; at < of.splits; at += 32) {
            if (at && at + lane < of.splits) mine = __ldcg((const float2*)(row + (u64)(at + lane) * STEP + D));
            float factor = exp2_of(__fsub_rn(mine.x, against)), own = __fmul_rn(mine.y, factor);
            u32 count = min(of.splits - at, 32u);
#pragma unroll 16
            for (u32 s = 0; s < count; s++) {
                float by = __shfl_sync(FULL, factor, s);
                weight = __fadd_rn(weight, __shfl_sync(FULL, own, s));
                const float* p = row + (u64)(at + s) * STEP + lane;
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] = __fmaf_rn(__ldcg(p + 32 * i), by, sum[i]);
            }
        }
        half_t* to = a.out + (u64)place_of(a, of, from + j) * D + lane;
#pragma unroll
        for (int i = 0; i < N; i++) to[32 * i] = to_half(sum[i] / weight);
    }
}

// What is where in shared memory: the ring's data, sums, their maxima and weights, queries, items, barriers.
template <int N, int QT>
struct Room {
    float *sums, *tops;
    uint2* queries;
    Ring ring;
};

template <int N, int QT>
__device__ __forceinline__ Room<N, QT> divide(char* room, u32 stages) {
    Room<N, QT> r;
    r.ring.data = (shared_address(room) + 1023) / 1024 * 1024;
    r.ring.stages = stages;
    room += r.ring.data - shared_address(room) + WAYS * stages * 2 * Layout<N>::HALF;
    r.sums = (float*)room;
    r.tops = r.sums + WAYS * 4 * Layout<N>::ROW;
    r.queries = (uint2*)(r.tops + 8 * WAYS) + (threadIdx.x & 31);
    r.ring.slots = (u32*)(r.tops + 8 * WAYS) + (QT > 1 ? QT * Layout<N>::QUERIES / 4 : 0);
    r.ring.items = (Item*)(r.ring.slots + ITEMS * ENTRIES);
    r.ring.item_barriers = shared_address(r.ring.items + ITEMS);
    r.ring.barriers = r.ring.item_barriers + 16 * ITEMS;
    return r;
}

__device__ __forceinline__ void init_barriers(const Ring& ring) {
    for (u32 i = 0; i < WAYS * ring.stages; i++) {
        barrier_init(ring.barriers + 16 * i, ARRIVALS);
        barrier_init(ring.barriers + 16 * i + 8, 1);
    }
    for (u32 i = 0; i < ITEMS; i++) {
        barrier_init(ring.item_barriers + 16 * i, 1);
        barrier_init(ring.item_barriers + 16 * i + 8, WAYS);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

template <int N, int QT>
__device__ void attend_stream(const Stream& a, const Rows& blocks, const Rows& tails) {
    extern __shared__ char room[];
    Room<N, QT> r = divide<N, QT>(room, a.stages);
    if (threadIdx.x == 0) init_barriers(r.ring);
    wait_for_last();
    Tickets tickets;
    if (threadIdx.x >= CONSUMERS) tickets = first_ticket(a);
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) return produce<N>(a, blocks, tails, r.ring, tickets, 8 * QT);
    Cursor tiles = {0, 0}, place = {0, 0};
    Sums<N, QT> f;
    for (bool stop = false; !stop;) {
        u32 filled = r.ring.item_barriers + 16 * place.at;
        barrier_wait(filled, place.round);
        Item item = r.ring.items[place.at];
        if (!item.empty) {
            start_item(f, a, item, r.queries);
            consume(f, a, item, r.ring, tiles, r.queries);
            finish_item(f, a, item, r.sums, r.tops);
        }
        // Read here: five registers fewer before.
        stop = r.ring.items[place.at].stop;
        Part join = r.ring.items[place.at].join;
        __syncwarp();
        if ((threadIdx.x & 31) == 0) barrier_arrive(filled + 8);
        // Last, since others may wait for the item's sums; and nothing is overwritten that it reads.
        if (join.splits) join_items<N, QT>(a, join);
        advance(place, ITEMS);
    }
}

// Of slots and of tails.
struct Maps {
    TensorMap slots, tail;
};

// WIDTH: a head's coordinates / 32. So many thread blocks a multiprocessor must hold that nothing is spilled.
#define ATTEND_STREAM(QT, BLOCKS)                                                                                    \
    extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, BLOCKS)                                             \
        attend_stream_##QT(const __grid_constant__ Stream a, const __grid_constant__ Maps maps) {                    \
        attend_stream<WIDTH, QT>(a, {&maps.slots, a.slots}, {&maps.tail, a.tail});                                   \
    }
ATTEND_STREAM(1, 3)
ATTEND_STREAM(2, 2)
