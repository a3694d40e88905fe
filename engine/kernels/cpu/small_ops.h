// What lies between the products: norms, the gate, moving rows. Each works on one row.
#pragma once

#include <cmath>

#include "rows.h"

// out = x / rms(x) * weight; n is a multiple of 16. In and out may be the same.
template <typename In, typename Out>
void rms_norm(const In* x, const float* weight, int64_t n, float epsilon, Row<Out> out) {
    Vec squares = zero();
    for (int64_t i = 0; i < n; i += kLanes) {
        const Vec v = load(x + i);
        squares = fma(v, v, squares);
    }
    const Vec scale = splat(1.0f / std::sqrt(sum(squares) / static_cast<float>(n) + epsilon));
    for (int64_t i = 0; i < n; i += kLanes) {
        store(out.at(i), load(x + i) * scale * load(weight + i));
    }
}

// x * sigmoid(x), for a result of type T: what is rounded to bfloat16 needs no exact division.
template <typename T>
Vec silu(Vec x) {
    if constexpr (sizeof(T) == 2) {
        // The limit keeps the divisor finite: its reciprocal is taken by a Newton step.
        const Vec power = min(splat(126.0f), x * splat(-1.44269504f));
        return x * quick_reciprocal(splat(1.0f) + rough_exp2(power));
    }
    return x / (splat(1.0f) + exp(zero() - x));
}
