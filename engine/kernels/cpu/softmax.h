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

inline Vec weight_of(Vec exponent, const float*) { return exp(exponent); }
inline Vec weight_of(Vec exponent, const bf16*) { return rough_exp(exponent); }

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
    const float factor = before == kMinusInfinity ? 0.0f : std::exp(before - row.top);
    store(row.totals, load(row.totals) * splat(factor));
    return factor;
}

inline Vec shift_of(const RowState& row) {
    return splat(row.top == kMinusInfinity ? 0.0f : -row.top);
}

template <typename T>
inline Vec weight(Vec score, float scale, Vec shift, T* out) {
    const Vec exponent = fma(score, splat(scale), shift);
    const Vec weight = zero_below(kSmallestExponent, exponent, weight_of(exponent, out));
    store(out, weight);
    return weight;
}

// Turn C registers of scores into weights; returns the factor for what the row summed before.
template <int C, typename T>
inline float weigh(const TmAttentionShape& shape, const Vec (&scores)[C], T* weights,
                   RowState& row) {
    const float scale = score_scale(shape);
    Vec highest = splat(kMinusInfinity);
    for (int c = 0; c < C; ++c) highest = max(scores[c], highest);
    const float factor = raise_top(row, highest * splat(scale));
    const Vec shift = shift_of(row);
    Vec total = load(row.totals);
    for (int c = 0; c < C; ++c) {
        total = total + weight(scores[c], scale, shift, weights + c * kLanes);
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
    const Vec shift = shift_of(row);
    Vec total = load(row.totals);
    for (int64_t i = 0; i < count; i += kLanes) {
        total = total + weight(load(scores + i), scale, shift, weights + i);
    }
    store(row.totals, total);
    return factor;
}
