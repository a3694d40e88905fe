// Sixteen float lanes on every machine: one AVX-512 register or two AVX2 registers, so that each
// kernel is written once. The level is fixed when the library is compiled (engine/kernels/build.py).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

using bf16 = uint16_t;

constexpr int kLanes = 16;

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

struct Vec {
    __m512 v;
};

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec splat(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// NaN in b stays NaN: a NaN must reach the logits, where the engine looks for it.
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline float first(Vec a) { return _mm512_cvtss_f32(a.v); }
inline float sum(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline float largest(Vec a) { return _mm512_reduce_max_ps(a.v); }
inline Vec load(const bf16* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
inline void store(bf16* p, Vec a) {
#if defined(__AVX512BF16__)
    const __m256i half = (__m256i)_mm512_cvtneps_pbh(a.v);
#else
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
    const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}
inline Vec round_to_int(Vec a) { return {_mm512_roundscale_ps(a.v, 8)}; }
// y, and 0 where x is below the limit; where x is NaN, y.
inline Vec zero_below(float limit, Vec x, Vec y) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_NLT_UQ), y.v)};
}
// Whether a lane of a is above that of b; NaN never is.
inline bool any_above(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0; }
// a where x is above y, else b
inline Vec where_above(Vec x, Vec y, Vec a, Vec b) {
    return {_mm512_mask_mov_ps(b.v, _mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ), a.v)};
}
// 1 / a to about 2 units in the last place; 0 where that is below the range of floats.
inline Vec quick_reciprocal(Vec a) {
    const Vec rough = {_mm512_rcp14_ps(a.v)};
    return rough * (splat(2.0f) - a * rough);
}
// a * 2^n for whole n
inline Vec scale_by_power(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }

#else

struct Vec {
    __m256 lo, hi;
};

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline float first(Vec a) { return _mm256_cvtss_f32(a.lo); }
inline float sum(Vec a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float largest(Vec a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline __m256 widen(__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline Vec load(const bf16* p) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    return {widen(_mm_loadu_si128(q)), widen(_mm_loadu_si128(q + 1))};
}
inline __m256i rounded_bits(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i kept = _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), nan);
    return _mm256_srli_epi32(kept, 16);
}
inline void store(bf16* p, Vec a) {
    // The pack works within 128-bit halves; the permutation puts the quarters back in order.
    const __m256i packed = _mm256_packus_epi32(rounded_bits(a.lo), rounded_bits(a.hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
inline Vec round_to_int(Vec a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
inline Vec round_down(Vec a) { return {_mm256_floor_ps(a.lo), _mm256_floor_ps(a.hi)}; }
inline Vec zero_below(float limit, Vec x, Vec y) {
    const __m256 edge = _mm256_set1_ps(limit);
    return {_mm256_and_ps(_mm256_cmp_ps(x.lo, edge, _CMP_NLT_UQ), y.lo),
            _mm256_and_ps(_mm256_cmp_ps(x.hi, edge, _CMP_NLT_UQ), y.hi)};
}
inline bool any_above(Vec a, Vec b) {
    const __m256 lo = _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ);
    const __m256 hi = _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ);
    return _mm256_movemask_ps(_mm256_or_ps(lo, hi)) != 0;
}
inline Vec where_above(Vec x, Vec y, Vec a, Vec b) {
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, y.lo, _CMP_GT_OQ)),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, y.hi, _CMP_GT_OQ))};
}
inline Vec quick_reciprocal(Vec a) { return splat(1.0f) / a; }
inline __m256 scale_by_power(__m256 a, __m256 n) {
    // In two halves, so that neither factor leaves the range of exponents.
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
inline Vec scale_by_power(Vec a, Vec n) {
    return {scale_by_power(a.lo, n.lo), scale_by_power(a.hi, n.hi)};
}

#endif

// e^x to about 2 units in the last place: 2^n times a polynomial on [-ln2/2, ln2/2] (the minimax
// coefficients of Cephes, S. Moshier). NaN stays NaN.
inline Vec exp(Vec x) {
    x = max(splat(-87.3f), min(splat(88.7f), x));
    const Vec n = round_to_int(x * splat(1.44269504f));
    Vec r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    Vec p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r + splat(1.0f));
    return scale_by_power(p, n);
}

// 2^x to one part in ten thousand, for what is rounded to bfloat16 afterwards; 0 where x is below the
// range of floats. 2^floor(x) times a polynomial of 2^f on [0, 1), minimax by Remez' algorithm.
inline Vec rough_exp2(Vec x) {
    constexpr float kSmallest = -126;
#if defined(__AVX512F__)
    const Vec f = {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
    const __mmask16 in_range = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(kSmallest), _CMP_NLT_UQ);
#else
    const Vec whole = round_down(max(splat(kSmallest), x)), f = x - whole;
#endif
    Vec p = fma(splat(0.0780245226f), f, splat(0.226067155f));
    p = fma(p, f, splat(0.69583354f));
    p = fma(p, f, splat(0.999925219f));
#if defined(__AVX512F__)
    return {_mm512_maskz_scalef_ps(in_range, p.v, x.v)};
#else
    return zero_below(kSmallest, x, scale_by_power(p, whole));
#endif
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}
inline void from_float(float x, float* out) { *out = x; }
inline void from_float(float x, bf16* out) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    *out = x != x ? 0x7fc0 : static_cast<bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
