// The likeliest token of each row while the head is multiplied, so that greedy rows need no logits
// in memory: each thread keeps a running best per row and lane, and they are compared at the end.
#pragma once

#include <algorithm>
#include <limits>

#include "simd.h"

constexpr int64_t kBestFloats = 3 * kLanes;  // of one row and thread

// What one thread has seen of one row.
struct BestSeen {
    float* lanes;  // [3][16]: largest logit of each lane, its column, and 0 or NaN

    void clear() const {
        store(lanes, splat(-std::numeric_limits<float>::infinity()));
        store(lanes + kLanes, zero());
        store(lanes + 2 * kLanes, zero());
    }

    // Logits of `count` neighbouring columns, of which a multiple of 16 may be read. The columns of
    // a row come in ascending order, so a later one must be larger to win.
    void see(const float* logits, int64_t column, int64_t count) const {
        Vec largest = load(lanes), at = load(lanes + kLanes), spoilt = load(lanes + 2 * kLanes);
        for (int64_t i = 0; i < count; i += kLanes) {
            Vec x = load(logits + i);
            if (i + kLanes > count) x = cut(x, count - i);
            // Columns below 2^24 are whole floats; the lane is added at the end.
            at = where_above(x, largest, splat(static_cast<float>(column + i)), at);
            largest = max(x, largest);
            spoilt = fma(x, zero(), spoilt);
        }
        store(lanes, largest);
        store(lanes + kLanes, at);
        store(lanes + 2 * kLanes, spoilt);
    }

   private:
    static Vec cut(Vec x, int64_t count) {
        alignas(64) float elements[kLanes];
        store(elements, x);
        std::fill(elements + count, elements + kLanes, -std::numeric_limits<float>::max());
        return load(elements);
    }
};

struct Best {
    float largest = -std::numeric_limits<float>::infinity();
    int64_t column = 0;
    bool finite = true;

    // The lowest column wins among equals, as in torch.argmax.
    void add(const BestSeen& seen) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const float x = seen.lanes[lane];
            const int64_t at = static_cast<int64_t>(seen.lanes[kLanes + lane]) + lane;
            if (x > largest || (x == largest && at < column)) {
                largest = x;
                column = at;
            }
            finite = finite && seen.lanes[2 * kLanes + lane] == 0.0f;
        }
    }
};
