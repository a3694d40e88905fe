// Rounding to int8 by one scale for a run of elements, and back.
#pragma once

#include <cmath>

#include "simd.h"

#if defined(__AVX512F__)
inline void store(int8_t* p, Vec a) {
    const __m128i eight = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), eight);
}
inline Vec load(const int8_t* p) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(eight))};
}
// Whole numbers as floats.
inline Vec load(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }
// Two floats in turn.
inline Vec splat_pair(const float* p) {
    double pair;
    std::memcpy(&pair, p, 8);
    return {_mm512_castpd_ps(_mm512_set1_pd(pair))};
}
#else
inline void store(int8_t* p, Vec a) {
    const __m256i half = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    // The pack works within 128-bit halves; the permutation puts the quarters back in order.
    const __m256i whole = _mm256_permute4x64_epi64(half, 0xd8);
    const __m128i eight =
        _mm_packs_epi16(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), eight);
}
inline Vec load(const int8_t* p) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(eight, 8)))};
}
inline Vec load(const int32_t* p) {
    const __m256i* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_cvtepi32_ps(_mm256_loadu_si256(q)),
            _mm256_cvtepi32_ps(_mm256_loadu_si256(q + 1))};
}
inline Vec splat_pair(const float* p) {
    double pair;
    std::memcpy(&pair, p, 8);
    const __m256 four = _mm256_castpd_ps(_mm256_set1_pd(pair));
    return {four, four};
}
#endif

// out [n] = x / scale, to the nearest and halves to even; returns the scale, the largest element over
// 127. With NaN or infinity among them the scale is NaN.
template <typename T>
float quantise_row(const T* x, int64_t n, int8_t* out) {
    Vec top = zero(), spoilt = zero();
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Vec v = load(x + i);
        top = max(top, max(v, zero() - v));
        spoilt = fma(v, zero(), spoilt);
    }
    float highest = largest(top) + sum(spoilt);
    for (int64_t rest = i; rest < n; ++rest) {
        const float v = to_float(x[rest]);
        highest = std::max(highest, std::fabs(v)) + 0.0f * v;
    }
    const float inverse = highest == 0.0f ? 0.0f : 127.0f / highest;
    for (i = 0; i + kLanes <= n; i += kLanes) store(out + i, load(x + i) * splat(inverse));
    if (i == n) return highest / 127.0f;
    alignas(64) float last[kLanes] = {};
    alignas(16) int8_t codes[kLanes];
    for (int64_t rest = i; rest < n; ++rest) last[rest - i] = to_float(x[rest]) * inverse;
    store(codes, load(last));
    std::memcpy(out + i, codes, n - i);
    return highest / 127.0f;
}
