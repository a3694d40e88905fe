// The inner loops of the product of int8: a few rows times a few packed panels, summed in int32, so
// that every path gives the same exact sum.
//
// A weight [n, k] is packed in panels of 16 outputs, each [k / 4][16][4]: one 64-byte line holds four
// inputs of 16 outputs, which is what vpdpbusd takes, and 16 lines are one AMX tile. k is padded with
// zeros to whole tiles.
#pragma once

#include "tiles.h"

// Inputs of one AMX tile.
constexpr int64_t kInt8Step = 64;

// Rows of a register tile.
constexpr int kInt8Rows = 6;

inline int32_t four_of(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return four;
}

#if defined(__AVX512VNNI__)
// vpdpbusd takes one factor without a sign: rows are moved up by 128, and what that adds, 128 times
// the sum of each output's weights, is where the sums start.
template <int R>
void multiply_tile_int8(const int8_t* rows, int64_t stride, const int8_t* panel,
                        const int32_t* offsets, int64_t k, int32_t* sums) {
    const __m512i flip = _mm512_set1_epi32(static_cast<int32_t>(0x80808080));
    __m512i sum[R];
    for (int r = 0; r < R; ++r) sum[r] = _mm512_loadu_si512(offsets);
    for (int64_t i = 0; i < k; i += 4) {
        const __m512i line = _mm512_loadu_si512(panel + i * kPanel);
        for (int r = 0; r < R; ++r) {
            const __m512i four = _mm512_set1_epi32(four_of(rows + r * stride + i));
            sum[r] = _mm512_dpbusd_epi32(sum[r], _mm512_xor_si512(four, flip), line);
        }
    }
    for (int r = 0; r < R; ++r) _mm512_storeu_si512(sums + r * kTileColumns, sum[r]);
}
#else
// vpmaddubsw takes one factor without a sign and sums two products in int16: the signs of the row go
// to the weights, of which none is -128, and 2 * 128 * 127 fits.
template <int R>
void multiply_tile_int8(const int8_t* rows, int64_t stride, const int8_t* panel, const int32_t*,
                        int64_t k, int32_t* sums) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (int64_t i = 0; i < k; i += 4) {
        const __m256i* line = reinterpret_cast<const __m256i*>(panel + i * kPanel);
        const __m256i low = _mm256_loadu_si256(line), high = _mm256_loadu_si256(line + 1);
        for (int r = 0; r < R; ++r) {
            const __m256i four = _mm256_set1_epi32(four_of(rows + r * stride + i));
            const __m256i size = _mm256_abs_epi8(four);
            const __m256i a = _mm256_maddubs_epi16(size, _mm256_sign_epi8(low, four));
            const __m256i b = _mm256_maddubs_epi16(size, _mm256_sign_epi8(high, four));
            sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(a, ones));
            sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(b, ones));
        }
    }
    for (int r = 0; r < R; ++r) {
        __m256i* out = reinterpret_cast<__m256i*>(sums + r * kTileColumns);
        _mm256_storeu_si256(out, sum[r][0]);
        _mm256_storeu_si256(out + 1, sum[r][1]);
    }
}
#endif

inline void multiply_few_int8(int64_t num_rows, const int8_t* rows, int64_t stride,
                              const int8_t* panel, const int32_t* offsets, int64_t k,
                              int32_t* sums) {
    switch (num_rows) {
        case 1: return multiply_tile_int8<1>(rows, stride, panel, offsets, k, sums);
        case 2: return multiply_tile_int8<2>(rows, stride, panel, offsets, k, sums);
        case 3: return multiply_tile_int8<3>(rows, stride, panel, offsets, k, sums);
        case 4: return multiply_tile_int8<4>(rows, stride, panel, offsets, k, sums);
        case 5: return multiply_tile_int8<5>(rows, stride, panel, offsets, k, sums);
        default: return multiply_tile_int8<kInt8Rows>(rows, stride, panel, offsets, k, sums);
    }
}

#if defined(TM_HAS_AMX)
// 32 rows times two panels; rows behind the last one are read, and what they give is not used.
inline void multiply_tiles_int8(const int8_t* rows, int64_t stride, const int8_t* panel,
                                const int8_t* second, int64_t k, int32_t* sums) {
    constexpr int64_t kRowBytes = kTileColumns * sizeof(int32_t);
    const bool has_second = second != nullptr;
    if (!has_second) second = panel;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t i = 0; i < k; i += kInt8Step) {
        TILE_LOAD(6, panel + i * kPanel, 64);
        TILE_LOAD(7, second + i * kPanel, 64);
        TILE_LOAD(4, rows + i, stride);
        TILE_MULTIPLY_INT8(0, 4, 6);
        TILE_MULTIPLY_INT8(1, 4, 7);
        TILE_LOAD(5, rows + 16 * stride + i, stride);
        TILE_MULTIPLY_INT8(2, 5, 6);
        TILE_MULTIPLY_INT8(3, 5, 7);
    }
    TILE_STORE(0, sums, kRowBytes);
    TILE_STORE(2, sums + 16 * kTileColumns, kRowBytes);
    if (!has_second) return;
    TILE_STORE(1, sums + kPanel, kRowBytes);
    TILE_STORE(3, sums + 16 * kTileColumns + kPanel, kRowBytes);
}
#endif

// sums[num_rows][kTileColumns] = rows times panels, of which there are at most kTilePanels;
// offsets[16] of each panel is -128 times the sum of each output's weights. At most kMaxRows rows.
inline void multiply_rows_int8(int64_t num_rows, const int8_t* rows, int64_t stride,
                               Panels<int8_t> panels, const int32_t* offsets, int64_t k,
                               int32_t* sums) {
#if defined(TM_HAS_AMX)
    for (int64_t p = 0; p < panels.count; p += 2) {
        const int8_t* panel = panels.first + p * panels.stride;
        const int8_t* second = p + 1 < panels.count ? panel + panels.stride : nullptr;
        multiply_tiles_int8(rows, stride, panel, second, k, sums + p * kPanel);
    }
#else
    for (int64_t r = 0; r < num_rows; r += kInt8Rows) {
        const int64_t few = std::min<int64_t>(kInt8Rows, num_rows - r);
        for (int64_t p = 0; p < panels.count; ++p) {
            multiply_few_int8(few, rows + r * stride, stride, panels.first + p * panels.stride,
                              offsets + p * kPanel, k, sums + r * kTileColumns + p * kPanel);
        }
    }
#endif
}
