#define NO_TOKEN 0xffffffffu

// Calls use(i, row[i]) for this thread's share of a row, eight loads in flight.
template <class Use>
__device__ __forceinline__ void each_logit(const float* row, u32 count, u32 from, u32 step, Use use) {
    for (u32 i = from; i < count; i += 8 * step) {
        float x[8];
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = i + j * step < count ? row[i + j * step] : 0.0f;
#pragma unroll
        for (u32 j = 0; j < 8; j++)
            if (i + j * step < count) use(i + j * step, x[j]);
    }
}

// The lowest index of a row's largest logit, and that logit; NO_TOKEN where all are NaN. All threads of a block get it.
__device__ __forceinline__ u32 best_of(const float* row, u32 vocab, float& largest) {
    __shared__ float values[32];
    __shared__ u32 places[32];
    float best = -INF;
    u32 place = NO_TOKEN;
    each_logit(row, vocab, threadIdx.x, blockDim.x, [&](u32 i, float x) {
        // A NaN is not greater than anything; the first -inf counts.
        if (x > best || (place == NO_TOKEN && x == best)) {
            best = x;
            place = i;
        }
    });
    u32 lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    for (int round = 0; round < 2; round++) {
#pragma unroll
        for (int at = 16; at; at >>= 1) {
            float other = __shfl_xor_sync(FULL, best, at);
            u32 there = __shfl_xor_sync(FULL, place, at);
            bool wins = there != NO_TOKEN && (place == NO_TOKEN || other > best || (other == best && there < place));
            if (wins) {
                best = other;
                place = there;
            }
        }
        if (round == 1) break;
        if (lane == 0) {
            values[threadIdx.x >> 5] = best;
            places[threadIdx.x >> 5] = place;
        }
        __syncthreads();
        best = lane < warps ? values[lane] : -INF;
        place = lane < warps ? places[lane] : NO_TOKEN;
    }
    largest = best;
    return place;
}

// One thread block a row.
extern "C" __global__ void argmax(const float* logits, u32 vocab, u32* out) {
    float largest;
    u32 place = best_of(logits + (u64)blockIdx.x * vocab, vocab, largest);
    if (threadIdx.x == 0) out[blockIdx.x] = place;
}

// Draws. Sums are in double precision, as the reference's, in another order.

#define DRAW_WARPS 16

struct Row {
    const float* logits;
    u32 vocab;
    float largest;
    // 1 / temperature.
    double coldness;
};

__device__ __forceinline__ double weight(const Row& r, float x) {
    double w = exp((double)(x - r.largest) * r.coldness);
    return isnan(w) ? 0.0 : w;
}

// How far below the largest logit, in the order of floats: 0 is the likeliest. Not for NaN.
__device__ __forceinline__ u32 distance(const Row& r, float x) {
    auto ascending = [](float x) {
        u32 bits = __float_as_uint(x + 0.0f);
        return bits >> 31 ? ~bits : bits | 1u << 31;
    };
    return ascending(r.largest) - ascending(x);
}

__device__ __forceinline__ double warp_total(double x) {
#pragma unroll
    for (int at = 16; at; at >>= 1) x += __shfl_xor_sync(FULL, x, at);
    return x;
}

// The sum of value(logits[i]).
template <class Value>
__device__ __forceinline__ double total_of(const Row& r, Value value) {
    __shared__ double sums[DRAW_WARPS];
    double sum = 0.0;
    each_logit(r.logits, r.vocab, threadIdx.x, blockDim.x, [&](u32, float x) { sum += value(x); });
    sum = warp_total(sum);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    sum = 0.0;
    for (u32 w = 0; w < DRAW_WARPS; w++) sum += sums[w];
    return sum;
}

// The i at which the running sum of value(logits[i]) passes goal(the sum of all); the last one of any value if rounding
// keeps it below. Every round sums a part a warp, and goes into one of them.
template <class Value, class Goal>
__device__ __forceinline__ u32 passes(const Row& r, Value value, Goal goal_of) {
    __shared__ double sums[DRAW_WARPS];
    u32 from = 0, end = r.vocab, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    double before = 0.0, goal = 0.0;
    for (bool start = true; end - from > 1 || start; start = false) {
        u32 part = (end - from + DRAW_WARPS - 1) / DRAW_WARPS, at = from + warp * part;
        double sum = 0.0;
        each_logit(r.logits, min(at + part, end), at + lane, 32, [&](u32, float x) { sum += value(x); });
        sum = warp_total(sum);
        __syncthreads();
        if (lane == 0) sums[warp] = sum;
        __syncthreads();
        if (start) {
            double total = 0.0;
            for (u32 w = 0; w < DRAW_WARPS; w++) total += sums[w];
            goal = goal_of(total);
        }
        u32 chosen = 0;
        double reached = before, ahead = before;
        for (u32 w = 0; w < DRAW_WARPS; w++) {
            if (sums[w] > 0.0) {
                chosen = w;
                ahead = reached;
                reached += sums[w];
                if (reached > goal) break;
            }
        }
        before = ahead;
        from += chosen * part;
        end = min(from + part, end);
    }
    return from;
}

// The distance at which the weights of the likeliest tokens together reach `goal` (pass it, if `strict`), and the weight
// of all that are likelier. Every round splits the distances that are left into 8 parts.
__device__ __forceinline__ u32 reaches(const Row& r, double goal, bool strict, double& likelier) {
    __shared__ double sums[DRAW_WARPS][8];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, from = 0;
    likelier = 0.0;
    for (int shift = 30; shift >= 0; shift -= 3) {
        double part[8] = {};
        each_logit(r.logits, r.vocab, threadIdx.x, blockDim.x, [&](u32, float x) {
            u32 far = distance(r, x), beyond = (far - from) >> shift;
            if (isnan(x) || far < from || beyond > 7) return;
            double w = weight(r, x);
#pragma unroll
            for (u32 j = 0; j < 8; j++) part[j] += beyond == j ? w : 0.0;
        });
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            double sum = warp_total(part[j]);
            if (lane == 0) sums[warp][j] = sum;
        }
        __syncthreads();
        u32 chosen = 0;
        double reached = likelier, ahead = likelier;
        for (u32 j = 0; j < 8; j++) {
            double sum = 0.0;
            for (u32 w = 0; w < DRAW_WARPS; w++) sum += sums[w][j];
            if (sum > 0.0) {
                chosen = j;
                ahead = reached;
                reached += sum;
                if (strict ? reached > goal : reached >= goal) break;
            }
        }
        likelier = ahead;
        from += chosen << shift;
    }
    return from;
}

// The weight of a token at this distance.
__device__ __forceinline__ double weight_at(const Row& r, u32 far) {
    u32 order = __float_as_uint(r.largest + 0.0f);
    order = (order >> 31 ? ~order : order | 1u << 31) - far;
    return weight(r, __uint_as_float(order >> 31 ? order & ~(1u << 31) : ~order));
}

// The softmax of a row over temperature, cut to its nucleus: one token a row. Likelier tokens come first in the nucleus,
// ties by id; without a nucleus tokens come in the order of their ids. One thread block of 16 warps a row.
extern "C" __global__ void __launch_bounds__(32 * DRAW_WARPS, 1)
    draw(const float* logits, u32 vocab, float temperature, float top_p, const float* draws, u32* out) {
    Row r = {logits + (u64)blockIdx.x * vocab, vocab, 0.0f, 1.0 / (double)temperature};
    u32 token = best_of(r.logits, vocab, r.largest);
    double uniform = draws[blockIdx.x];
    if (token != NO_TOKEN && !isinf(r.largest)) {
        auto weight_of = [&](float x) { return weight(r, x); };
        if (top_p >= 1.0f) {
            token = passes(r, weight_of, [&](double total) { return uniform * total; });
        } else {
            double likelier, ahead, goal = top_p * total_of(r, weight_of);
            u32 last = reaches(r, goal, false, likelier);
            // Of the tokens at the nucleus's end as many as it takes.
            double each = weight_at(r, last);
            auto at_the_end = [&](float x) { return x == x && distance(r, x) == last ? 1.0 : 0.0; };
            double ties = fmin(total_of(r, at_the_end), fmax(1.0, ceil((goal - likelier) / each)));
            double chosen = uniform * (likelier + ties * each);
            u32 far = reaches(r, chosen, true, ahead);
            if (far >= last) {
                far = last;
                ahead = likelier;
            }
            // Which of the tokens at that distance.
            double nth = floor(fmax(chosen - ahead, 0.0) / weight_at(r, far));
            if (far == last) nth = fmin(nth, ties - 1.0);
            auto there = [&](float x) { return x == x && distance(r, x) == far ? 1.0 : 0.0; };
            token = passes(r, there, [&](double) { return nth; });
        }
    }
    if (threadIdx.x == 0) out[blockIdx.x] = token;
}
