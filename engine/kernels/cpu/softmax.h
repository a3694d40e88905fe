// The online softmax (Milakov and Gimelshein, 2018): scores become weights some keys at a time, and
// what was summed before is scaled to the largest score so far.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention.h"
#include "simd.h"

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kSmallestExponent = -87.0f;  // below it a weight is 0

// What a row has seen: its largest score, and by lane the sum of e^(score - largest).
struct RowState {
    float top;
    alignas(64) float totals[kLanes];

    void reset() {
        top = kMinusInfinity;
        store(totals, zero());
    }
    float total() const { return sum(load(totals)); }
};

// Exponents of weights in float32 are of e, of those in bfloat16 of 2.
template <typename T>
constexpr float kExponentUnit = sizeof(T) == 2 ? 1.44269504f : 1.0f;

inline Vec weight_of(Vec exponent, const float*) {
    return zero_below(kSmallestExponent, exponent, exp(exponent));
}
inline Vec weight_of(Vec exponent, const bf16*) { return rough_exp2(exponent); }

// Of the products of a query with `count` keys those in from .. to stay, capped if the layer caps
// scores. The others are set and not added to: what is not seen may be NaN.
inline void hide_and_cap(const TmAttentionShape& shape, float* scores, int64_t from, int64_t to,
                         int64_t count) {
    from = std::min(std::max(from, int64_t{0}), count);
    to = std::min(std::max(to, from), count);
    std::fill(scores, scores + from, kMinusInfinity);
    std::fill(scores + to, scores + count, kMinusInfinity);
    if (shape.softcap == 0) return;
    for (int64_t i = from; i < to; ++i) {
        scores[i] = shape.softcap * std::tanh(scores[i] * shape.scale / shape.softcap);
    }
}

// What turns the scores of hide_and_cap into exponents.
inline float score_scale(const TmAttentionShape& shape) {
    return shape.softcap > 0 ? 1.0f : shape.scale;
}

// Raise a row to the highest of its new scores; returns the factor for what it summed before.
inline float raise_top(RowState& row, Vec highest) {
    if (!any_above(highest, splat(row.top))) return 1;
    const float before = row.top;
    row.top = largest(highest);
    const float factor = before == kMinusInfinity ? 0.0f : first(exp(splat(before - row.top)));
    store(row.totals, load(row.totals) * splat(factor));
    return factor;
}

// Turns scores of a row into weights.
template <typename T>
class Weigher {
   public:
    Weigher(float scale, const RowState& row)
        : scale_(splat(scale * kExponentUnit<T>)),
          shift_(splat(row.top == kMinusInfinity ? 0.0f : -row.top * kExponentUnit<T>)) {}

    Vec weigh(Vec score, T* out) const {
        const Vec weight = weight_of(fma(score, scale_, shift_), out);
        store(out, weight);
        return weight;
    }

   private:
    const Vec scale_, shift_;
};

// Turn C registers of scores into weights; returns the factor for what the row summed before.
template <int C, typename T>
inline float weigh(const TmAttentionShape& shape, const Vec (&scores)[C], T* weights,
                   RowState& row) {
    const float scale = score_scale(shape);
    Vec highest = splat(kMinusInfinity);
    for (int c = 0; c < C; ++c) highest = max(scores[c], highest);
    const float factor = raise_top(row, highest * splat(scale));
    const Weigher<T> weigher(scale, row);
    Vec total = load(row.totals);
    for (int c = 0; c < C; ++c) {
        total = total + weigher.weigh(scores[c], weights + c * kLanes);
    }
    store(row.totals, total);
    return factor;
}

// The same for `count` scores in memory, a multiple of the lanes.
template <typename T>
float weigh(const TmAttentionShape& shape, const float* scores, T* weights, int64_t count,
            RowState& row) {
    const float scale = score_scale(shape);
    Vec highest = splat(kMinusInfinity);
    for (int64_t i = 0; i < count; i += kLanes) highest = max(load(scores + i), highest);
    const float factor = raise_top(row, highest * splat(scale));
    const Weigher<T> weigher(scale, row);
    Vec total = load(row.totals);
    for (int64_t i = 0; i < count; i += kLanes) {
        total = total + weigher.weigh(load(scores + i), weights + i);
    }
    store(row.totals, total);
    return factor;
}
