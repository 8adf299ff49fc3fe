// How keys and values reach the tensor cores of attend_stream.cu: a ring of tiles in shared memory that one warp fills.
#define WAYS 4
#define CONSUMERS (32 * WAYS)

// A tile is 16 tokens of one KV head: their keys, their values. Each half lies as one TMA box of 16 rows does: parts of WIDE
// coordinates one after the other, within a part the 16-byte units of a row exchanged by the row's number, so that the
// eight rows that `ldmatrix` reads at once are in different banks.
template <int N>
struct Layout {
    static const u32 WIDE = N % 2 ? 32 : 64;
    // Bytes of a half.
    static const u32 HALF = 16 * 64 * N;
    // Floats of a query's row of sums: lanes of a warp write to different banks.
    static const u32 ROW = 32 * N + 4;
    // Bytes of eight queries in shared memory.
    static const u32 QUERIES = 2 * N * 32 * 8;
};

// Where unit `unit` (8 coordinates) of a row lies, from the start of a half.
template <int N>
__device__ __forceinline__ u32 unit_at(u32 row, u32 unit) {
    const u32 W = Layout<N>::WIDE, UNITS = W / 8;
    u32 by = N % 2 ? row / 2 % 4 : row % 8;
    return unit / UNITS * (32 * W) + row * 2 * W + ((unit % UNITS) ^ by) * 16;
}

// A CUtensorMap of rows of d bfloat16 as [parts][rows][WIDE], boxes of all parts of 16 rows.
struct __align__(64) TensorMap {
    u64 words[16];
};

struct Stream {
    const half_t *q, *slots, *tail;
    const u32 *entries, *entry_count, *first, *committed, *ancestors;
    // [pools][query_tiles][splits][8 QT][d + 4]: sums, maximum, weight.
    float* part;
    // [rows][heads][slots + 1], or null.
    float* lse;
    half_t* out;
    // Items handed out; thread blocks that have ended; of each pool and query tile [pools][query_tiles] its items that are
    // done. All zero before and after.
    u32* tickets;
    u32 heads, kv_heads, pools, slot_count, tail_tokens, block_tokens, splits, split_entries, query_tiles, stages;
    // log2(e) / sqrt(d).
    float scale;
};

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(barrier) : "memory");
}

// Arrives when `read` has come from shared memory: the arrival says that the stage was read, but does not itself wait for
// loads that are on their way, and who writes there next is the copy engine.
__device__ __forceinline__ void barrier_arrive_after(u32 barrier, u32 read) {
    asm volatile(
        "{ .reg .b64 s; .reg .pred p; setp.eq.u32 p, %1, 1; @p mbarrier.arrive.shared.b64 s, [%0]; @!p mbarrier.arrive.shared.b64 s, "
        "[%0]; }" ::"r"(barrier),
        "r"(read)
        : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
#else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
#endif
    } while (!done);
}

// 8 QT of the queries of a pool, whose sums come from so many splits.
struct Part {
    u32 pool, tile, row0, queries, splits;
};

// The work of one go: entries of one split, and with the first split the tail's tokens.
struct Item {
    Part of;
    u32 split, entry, entries, tail, committed;
    // Bit i: slot i is none of the pool's.
    u32 bad;
    // There is nothing to attend; nor will there be.
    u32 empty, stop;
    // Sums that are complete, to be added before; none if it has no splits.
    Part join;
};

// Most entries of a split: one a lane.
#define ENTRIES 32

// Items that are on their way from the copying warp to the others.
#define ITEMS 2

// Each consumer has `stages` stages of its own, which it takes in turn: a place there, and whether this round is an odd one.
struct Cursor {
    u32 at, round;
};

__device__ __forceinline__ void advance(Cursor& c, u32 stages) {
    if (++c.at == stages) {
        c.at = 0;
        c.round ^= 1;
    }
}

// Where in shared memory the barriers (filled, emptied) of all stages and of `items` are, the items' slots [ITEMS][ENTRIES],
// the stages' data.
struct Ring {
    u32 barriers, item_barriers, data, stages;
    Item* items;
    u32* slots;
};

// Rows of d coordinates: keys and values of slots, or of tails.
struct Rows {
    const TensorMap* map;
    const half_t* base;
};

#if __CUDA_ARCH__ >= 900
// One thread copies; the barrier counts the bytes.
#define COPIERS 1
#define ARRIVALS 1

template <int N>
__device__ __forceinline__ void copy_box(u32 to, u32 filled, const Rows& rows, u32 row) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %3}], [%2];" ::"r"(to),
        "l"(rows.map), "r"(filled), "r"(0), "r"(row)
        : "memory");
}

template <int N>
__device__ __forceinline__ void copy_tile(u32 data, u32 filled, const Rows& rows, u32 k, u32 v, u32 tokens) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(filled), "r"(2 * Layout<N>::HALF)
                 : "memory");
    copy_box<N>(data, filled, rows, k);
    copy_box<N>(data + Layout<N>::HALF, filled, rows, v);
}
#else
// A warp copies; every lane arrives when its copies are there.
#define COPIERS 32
#define ARRIVALS 32

template <int N>
__device__ __forceinline__ void copy_tile(u32 data, u32 filled, const Rows& rows, u32 k, u32 v, u32 tokens) {
    for (u32 i = threadIdx.x & 31; i < 32 * 4 * N; i += 32) {
        u32 row = i / (4 * N) % 16, unit = i % (4 * N);
        bool of_v = i >= 16 * 4 * N;
        if (row < tokens) {
            const half_t* source = rows.base + ((u64)(of_v ? v : k) + row) * 32 * N + 8 * unit;
            u32 to = data + (of_v ? Layout<N>::HALF : 0) + unit_at<N>(row, unit);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(source) : "memory");
        }
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(filled) : "memory");
}
#endif

// The copiers' cursors of all consumers: eight bits of place each, one of round.
struct Cursors {
    u32 at, round;
};

// Copiers put a tile of `tokens` <= 16 into the next stage of a consumer.
template <int N>
__device__ __forceinline__ void put_tile(const Ring& ring, Cursors& c, u32 way, const Rows& rows, u32 k, u32 v, u32 tokens) {
    u32 at = c.at >> 8 * way & 0xff, stage = way * ring.stages + at, filled = ring.barriers + 16 * stage;
    barrier_wait(filled + 8, (c.round >> way & 1) ^ 1);
    copy_tile<N>(ring.data + stage * 2 * Layout<N>::HALF, filled, rows, k, v, tokens);
    bool end = at + 1 == ring.stages;
    c.at += (end ? 0u - at : 1u) << 8 * way;
    c.round ^= (u32)end << way;
}

// Items are handed out one after the other, all first splits first; every thread block's first one is that of its number. So
// thread blocks that start late, or share their multiprocessor with other work, do less; and splits that no pool reaches
// cost nothing. Under load an answer of the memory takes microseconds: whatever is asked for is asked one item ahead.
struct Tickets {
    u32 items, next, drawn;
    // What was read about the next item, its slots one a lane.
    u32 row0, row1, count, committed, slots;
};

__device__ __forceinline__ void ask(Tickets& t, const Stream& a) {
    u32 lane = threadIdx.x & 31, pool = t.next / a.query_tiles % a.pools, seq = pool / a.kv_heads;
    u32 entry = t.next / a.query_tiles / a.pools * a.split_entries + lane;
    t.drawn = lane == 0 ? gridDim.x + atomicAdd(a.tickets, 1) : 0;
    t.slots = entry < a.slot_count ? a.entries[(u64)pool * a.slot_count + entry] : 0;
    t.row0 = a.first[seq];
    t.row1 = a.first[seq + 1];
    t.count = a.entry_count[pool];
    t.committed = a.committed[seq];
}

__device__ __forceinline__ Tickets first_ticket(const Stream& a) {
    Tickets t;
    t.next = blockIdx.x;
    ask(t, a);
    u32 most = 1;
    for (u32 pool = threadIdx.x & 31; pool < a.pools; pool += 32) most = max(most, min(a.entry_count[pool], a.slot_count));
    most = __reduce_max_sync(FULL, most);
    t.items = (most + a.split_entries - 1) / a.split_entries * a.pools * a.query_tiles;
    return t;
}

// The next item that has something to do, for `wide` queries, as it was asked for. All lanes of a warp.
__device__ __forceinline__ bool take(Tickets& t, const Stream& a, u32 wide, Item& item, u32& slots) {
    u32 group = a.heads / a.kv_heads, lane = threadIdx.x & 31;
    while (t.next < t.items) {
        u32 i = t.next, count = min(t.count, a.slot_count);
        item.of.tile = i % a.query_tiles;
        item.of.pool = i / a.query_tiles % a.pools;
        item.split = i / a.query_tiles / a.pools;
        item.entry = item.split * a.split_entries;
        item.of.row0 = t.row0;
        item.of.queries = (t.row1 - t.row0) * group;
        item.committed = t.committed;
        slots = t.slots;
        t.next = __shfl_sync(FULL, t.drawn, 0);
        if (item.of.tile * wide < item.of.queries && (!item.split || item.entry < count)) {
            item.entries = min(count, item.entry + a.split_entries) - item.entry;
            item.bad = __ballot_sync(FULL, lane < item.entries && slots >= a.slot_count);
            item.of.splits = max((count + a.split_entries - 1) / a.split_entries, 1u);
            // Only rows that exist lie in the tail behind the committed tokens.
            item.tail = item.split ? 0 : min(item.committed + item.of.queries / group, a.tail_tokens);
            return true;
        }
        if (t.next < t.items) ask(t, a);
    }
    return false;
}

// Counts that an item is done, when its sums are written: what lane 0 gets is how many of the pool's were before.
__device__ __forceinline__ u32 count_done(const Stream& a, const Part& of) {
    if ((threadIdx.x & 31) || of.splits <= 1) return 0;
    __threadfence();
    return atomicAdd(a.tickets + 2 + of.pool * a.query_tiles + of.tile, 1);
}

// What lane 0 counted: sums to be added, if that item was the pool's last.
__device__ __forceinline__ Part complete(const Stream& a, const Part& of, u32 before) {
    Part join = of;
    before = __shfl_sync(FULL, before, 0);
    if (of.splits <= 1 || before + 1 != of.splits) {
        join.splits = 0;
    } else if ((threadIdx.x & 31) == 0) {
        a.tickets[2 + of.pool * a.query_tiles + of.tile] = 0;
        __threadfence();
    }
    return join;
}

// Hands an item to the consumers, who are done with the one that was in its place.
__device__ __forceinline__ void send_item(const Ring& ring, const Cursor& c, const Item& item, u32 slots) {
    ring.slots[ENTRIES * c.at + (threadIdx.x & 31)] = slots;
    __syncwarp();
    if ((threadIdx.x & 31) == 0) {
        ring.items[c.at] = item;
        barrier_arrive(ring.item_barriers + 16 * c.at);
    }
}

// Copiers put all tiles of an item into the ring.
template <int N>
__device__ __forceinline__ void put_item(const Stream& a, const Rows& blocks, const Rows& tails, const Ring& ring, Cursors& c,
                                         const Item& item, const u32* slots) {
    u32 block = 2 * a.block_tokens, first = item.of.pool * a.slot_count;
    for (u32 i = 0; i < item.entries; i++) {
        u32 slot = slots[i], row = (first + (slot < a.slot_count ? slot : 0)) * block;
        for (u32 at = 0; at < a.block_tokens; at += 16) put_tile<N>(ring, c, i % WAYS, blocks, row + at, row + a.block_tokens + at, 16);
    }
    u32 row = item.of.pool * 2 * a.tail_tokens;
    for (u32 at = 0; at < item.tail; at += 16)
        put_tile<N>(ring, c, item.entries % WAYS, tails, row + at, row + a.tail_tokens + at, min(item.tail - at, 16u));
}

// The copying warp. When an item's place is needed again it is done and is counted; the count is there when the next place
// is needed. After the last item two more goes collect what is still to be counted.
template <int N>
__device__ __forceinline__ void produce(const Stream& a, const Rows& blocks, const Rows& tails, const Ring& ring, Tickets& t,
                                        u32 wide) {
    Cursors tiles = {0, 0};
    Cursor place = {0, 0};
    Part counted = {0, 0, 0, 0, 0};
    u32 before = 0, slots = 0, empty = 0;
    for (u32 sent = 0; empty < 3; sent++) {
        Item item;
        item.empty = !take(t, a, wide, item, slots);
        empty += item.empty;
        item.stop = empty == 3;
        if (!item.empty && t.next < t.items) ask(t, a);
        barrier_wait(ring.item_barriers + 16 * place.at + 8, place.round ^ 1);
        item.join = complete(a, counted, before);
        counted.splits = 0;
        if (sent >= ITEMS && !ring.items[place.at].empty) counted = ring.items[place.at].of;
        before = count_done(a, counted);
        __syncwarp();
        send_item(ring, place, item, slots);
        if (!item.empty && (threadIdx.x & 31) < COPIERS)
            put_item<N>(a, blocks, tails, ring, tiles, item, ring.slots + ENTRIES * place.at);
        __syncwarp();
        advance(place, ITEMS);
    }
    // The last thread block, when all have drawn their last ticket, leaves zeros for the next launch.
    __threadfence();
    if ((threadIdx.x & 31) == 0 && atomicAdd(a.tickets + 1, 1) + 1 == gridDim.x) {
        a.tickets[0] = 0;
        a.tickets[1] = 0;
    }
}
