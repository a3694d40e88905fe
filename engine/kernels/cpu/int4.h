// Weights of 4 bits, of which a few panels at a time are made into panels of the rows' type.
//
// A panel holds 16 outputs in groups of 32 inputs: the step between two values and the least value
// of each output, 16 bfloat16 each, then 4 lines [16] of uint32 with 8 inputs of an output each, the
// first in the lowest bits. A weight is its 4 bits times the step, plus the least value.
#pragma once

#include "tiles.h"

constexpr int64_t kInt4Group = 32;
constexpr int64_t kInt4GroupBytes = 2 * kPanel * 2 + kInt4Group * kPanel / 2;

#if defined(__AVX512F__)
struct Codes {
    __m512i v;
};
inline Codes load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
// The lowest 4 bits of each, which are taken off.
inline Vec next_code(Codes& codes) {
    const __m512i four = _mm512_and_si512(codes.v, _mm512_set1_epi32(15));
    codes.v = _mm512_srli_epi32(codes.v, 4);
    return {_mm512_cvtepi32_ps(four)};
}
#else
struct Codes {
    __m256i lo, hi;
};
inline Codes load_codes(const uint8_t* p) {
    const __m256i* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline Vec next_code(Codes& codes) {
    const __m256i mask = _mm256_set1_epi32(15);
    const Vec four = {_mm256_cvtepi32_ps(_mm256_and_si256(codes.lo, mask)),
                      _mm256_cvtepi32_ps(_mm256_and_si256(codes.hi, mask))};
    codes.lo = _mm256_srli_epi32(codes.lo, 4);
    codes.hi = _mm256_srli_epi32(codes.hi, 4);
    return four;
}
#endif

// Two inputs of 16 outputs as a line of a panel; tiles.h.
inline void store_line(float* line, Vec first, Vec second) {
    store(line, first);
    store(line + kPanel, second);
}
inline void store_line(bf16* line, Vec first, Vec second) {
#if defined(__AVX512F__)
    // A store rounds to 16 bits and the load puts them at the top of 32.
    alignas(64) bf16 half[2 * kPanel];
    store(half, first);
    store(half + kPanel, second);
    const __m256i* q = reinterpret_cast<const __m256i*>(half);
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_load_si256(q));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_load_si256(q + 1));
    _mm512_storeu_si512(line, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
#else
    bf16 half[2 * kPanel];
    store(half, first);
    store(half + kPanel, second);
    for (int i = 0; i < kPanel; ++i) {
        line[2 * i] = half[i];
        line[2 * i + 1] = half[kPanel + i];
    }
#endif
}

// panel [k * 16] = inputs first .. first + k of a panel of 4 bits; both are multiples of 32.
template <typename T>
void unpack_int4(const uint8_t* packed, int64_t first, int64_t k, T* panel) {
    const uint8_t* group = packed + first / kInt4Group * kInt4GroupBytes;
    for (int64_t i = 0; i < k; i += kInt4Group, group += kInt4GroupBytes) {
        const bf16* scales = reinterpret_cast<const bf16*>(group);
        const Vec step = load(scales), least = load(scales + kPanel);
        const uint8_t* lines = group + 2 * kPanel * sizeof(bf16);
        for (int64_t line = 0; line < kInt4Group / 8; ++line) {
            Codes codes = load_codes(lines + line * 64);
            for (int64_t pair = 0; pair < 4; ++pair, panel += 2 * kPanel) {
                const Vec even = fma(next_code(codes), step, least);
                store_line(panel, even, fma(next_code(codes), step, least));
            }
        }
    }
}
