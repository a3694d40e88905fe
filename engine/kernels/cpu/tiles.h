// The inner loops of the matrix product: a few rows times a few packed panels, summed in float32.
//
// A weight [n, k] is packed in panels of 16 outputs. In bfloat16 a panel is [k / 2][16][2]: one
// 64-byte line holds two inputs of 16 outputs, which is what vdpbf16ps takes, and 16 lines are one
// AMX tile. In float32 a panel is [k][16].
#pragma once

#include <algorithm>

#include "amx.h"
#include "simd.h"

constexpr int kPanel = 16;

// Rows and panels of a register tile. 6 x 4 sums, 4 loads of a panel and a broadcast fill the 32
// registers of AVX-512; AVX2 has 16 half as wide. Panels come in pairs: a gate and its up.
#if defined(__AVX512F__)
constexpr int kTileRows = 6, kTilePanels = 4;
#else
constexpr int kTileRows = 3, kTilePanels = 2;
#endif
constexpr int kTileColumns = kTilePanels * kPanel;
// The same where panels are widened on their way: that takes registers, and a tall tile does it less
// often.
#if defined(__AVX512F__)
constexpr int kWideningRows = 6, kWideningPanels = 2;
#else
constexpr int kWideningRows = 6, kWideningPanels = 1;
#endif
// Rows that one call of multiply_rows takes; AMX works on 2 x 2 tiles of 16 rows.
#if defined(TM_HAS_AMX)
constexpr int kMaxRows = 32;
#else
constexpr int kMaxRows = 6;
#endif

// Elements between two panels of a weight with k inputs, and between two steps along k in a panel.
inline int64_t panel_elements(int64_t k) { return k * kPanel; }

// A line of a panel of bfloat16, and its first and second inputs in float32.
#if defined(__AVX512F__)
using Line = __m512i;
inline Line load_line(const bf16* p) { return _mm512_loadu_si512(p); }
inline Vec first_inputs(Line line) { return {_mm512_castsi512_ps(_mm512_slli_epi32(line, 16))}; }
inline Vec second_inputs(Line line) {
    const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
    return {_mm512_castsi512_ps(_mm512_and_si512(line, high))};
}
#else
struct Line {
    __m256i lo, hi;
};
inline Line load_line(const bf16* p) {
    const __m256i* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline Vec first_inputs(Line line) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(line.lo, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(line.hi, 16))};
}
inline Vec second_inputs(Line line) {
    const __m256i high = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000));
    return {_mm256_castsi256_ps(_mm256_and_si256(line.lo, high)),
            _mm256_castsi256_ps(_mm256_and_si256(line.hi, high))};
}
#endif

// sum + both inputs of a line times a pair of a row's elements
#if defined(__AVX512BF16__)
inline Vec multiply_pair(Vec sum, const bf16* pair, Line line) {
    int32_t both;
    std::memcpy(&both, pair, 4);
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)line, (__m512bh)_mm512_set1_epi32(both))};
}
#else
inline Vec multiply_pair(Vec sum, const bf16* pair, Line line) {
    sum = fma(first_inputs(line), splat(to_float(pair[0])), sum);
    return fma(second_inputs(line), splat(to_float(pair[1])), sum);
}
#endif

// Panels that lie one behind the other, `stride` elements apart.
template <typename T>
struct Panels {
    const T* first;
    int64_t stride;
    int64_t count;
};

template <int R, int C>
inline void start_sums(Vec (&sum)[R][C], const float* sums, bool adds) {
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) {
            sum[r][c] = adds ? load(sums + r * kTileColumns + c * kPanel) : zero();
        }
    }
}

template <int R, int C>
inline void store_sums(const Vec (&sum)[R][C], float* sums) {
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) store(sums + r * kTileColumns + c * kPanel, sum[r][c]);
    }
}

// sums[r][c * 16 ..] = rows[r] . panel c (added to what is there if `adds`), for R rows, C panels.
template <int R, int C>
void multiply_tile(const bf16* rows, int64_t stride, Panels<bf16> panels, int64_t k, float* sums,
                   bool adds) {
    Vec sum[R][C];
    start_sums<R, C>(sum, sums, adds);
    for (int64_t i = 0; i < k; i += 2) {
        Line line[C];
        for (int c = 0; c < C; ++c) {
            line[c] = load_line(panels.first + c * panels.stride + i * kPanel);
        }
        for (int r = 0; r < R; ++r) {
            for (int c = 0; c < C; ++c) {
                sum[r][c] = multiply_pair(sum[r][c], rows + r * stride + i, line[c]);
            }
        }
    }
    store_sums<R, C>(sum, sums);
}

template <int R, int C>
void multiply_tile(const float* rows, int64_t stride, Panels<float> panels, int64_t k, float* sums,
                   bool adds) {
    Vec sum[R][C];
    start_sums<R, C>(sum, sums, adds);
    for (int64_t i = 0; i < k; ++i) {
        Vec line[C];
        for (int c = 0; c < C; ++c) line[c] = load(panels.first + c * panels.stride + i * kPanel);
        for (int r = 0; r < R; ++r) {
            const Vec a = splat(rows[r * stride + i]);
            for (int c = 0; c < C; ++c) sum[r][c] = fma(a, line[c], sum[r][c]);
        }
    }
    store_sums<R, C>(sum, sums);
}

// In the order of sums of the panels in float32, so to the last bit their result.
template <int R, int C>
void multiply_tile(const float* rows, int64_t stride, Panels<bf16> panels, int64_t k, float* sums,
                   bool adds) {
    Vec sum[R][C];
    start_sums<R, C>(sum, sums, adds);
    for (int64_t i = 0; i < k; i += 2) {
        Line line[C];
        Vec inputs[C];
        for (int c = 0; c < C; ++c) {
            line[c] = load_line(panels.first + c * panels.stride + i * kPanel);
            inputs[c] = first_inputs(line[c]);
        }
        for (int r = 0; r < R; ++r) {
            const Vec a = splat(rows[r * stride + i]);
            for (int c = 0; c < C; ++c) sum[r][c] = fma(a, inputs[c], sum[r][c]);
        }
        for (int c = 0; c < C; ++c) inputs[c] = second_inputs(line[c]);
        for (int r = 0; r < R; ++r) {
            const Vec a = splat(rows[r * stride + i + 1]);
            for (int c = 0; c < C; ++c) sum[r][c] = fma(a, inputs[c], sum[r][c]);
        }
    }
    store_sums<R, C>(sum, sums);
}

template <int C, typename T>
void multiply_few(int64_t num_rows, const T* rows, int64_t stride, Panels<T> panels, int64_t k,
                  float* sums, bool adds) {
    switch (num_rows) {
        case 1: return multiply_tile<1, C>(rows, stride, panels, k, sums, adds);
        case 2: return multiply_tile<2, C>(rows, stride, panels, k, sums, adds);
#if defined(__AVX512F__)
        case 3: return multiply_tile<3, C>(rows, stride, panels, k, sums, adds);
        case 4: return multiply_tile<4, C>(rows, stride, panels, k, sums, adds);
        case 5: return multiply_tile<5, C>(rows, stride, panels, k, sums, adds);
#endif
        default: return multiply_tile<kTileRows, C>(rows, stride, panels, k, sums, adds);
    }
}

template <int C>
void multiply_few(int64_t num_rows, const float* rows, int64_t stride, Panels<bf16> panels,
                  int64_t k, float* sums, bool adds) {
    switch (num_rows) {
        case 1: return multiply_tile<1, C>(rows, stride, panels, k, sums, adds);
        case 2: return multiply_tile<2, C>(rows, stride, panels, k, sums, adds);
        case 3: return multiply_tile<3, C>(rows, stride, panels, k, sums, adds);
        case 4: return multiply_tile<4, C>(rows, stride, panels, k, sums, adds);
        case 5: return multiply_tile<5, C>(rows, stride, panels, k, sums, adds);
        default: return multiply_tile<kWideningRows, C>(rows, stride, panels, k, sums, adds);
    }
}

#if defined(TM_HAS_AMX)
// 32 rows times two panels. Rows behind the last one are read, so buffers are padded to whole
// tiles; what they give is not used.
inline void multiply_tiles(const bf16* rows, int64_t stride, const bf16* panel, const bf16* second,
                           int64_t k, float* sums, bool adds) {
    constexpr int64_t kRowBytes = kTileColumns * sizeof(float);
    const int64_t bytes = stride * 2;
    const bool has_second = second != nullptr;
    if (!has_second) second = panel;
    if (adds) {
        TILE_LOAD(0, sums, kRowBytes);
        TILE_LOAD(1, sums + (has_second ? kPanel : 0), kRowBytes);
        TILE_LOAD(2, sums + 16 * kTileColumns, kRowBytes);
        TILE_LOAD(3, sums + 16 * kTileColumns + (has_second ? kPanel : 0), kRowBytes);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t i = 0; i < k; i += 32) {
        TILE_LOAD(6, panel + i * kPanel, 64);
        TILE_LOAD(7, second + i * kPanel, 64);
        TILE_LOAD_ONCE(4, rows + i, bytes);
        TILE_MULTIPLY(0, 4, 6);
        TILE_MULTIPLY(1, 4, 7);
        TILE_LOAD_ONCE(5, rows + 16 * stride + i, bytes);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, sums, kRowBytes);
    TILE_STORE(2, sums + 16 * kTileColumns, kRowBytes);
    if (!has_second) return;
    TILE_STORE(1, sums + kPanel, kRowBytes);
    TILE_STORE(3, sums + 16 * kTileColumns + kPanel, kRowBytes);
}
#endif

// sums[num_rows][kTileColumns] = rows times panels, added to what is there if `adds`; at most
// kTilePanels of them, and with AMX at most kMaxRows rows.
template <typename T>
void multiply_rows(int64_t num_rows, const T* rows, int64_t stride, Panels<T> panels, int64_t k,
                   float* sums, bool adds = false) {
#if defined(TM_HAS_AMX)
    if constexpr (sizeof(T) == 2) {
        // One row fills a sixteenth of its tile and is still faster so than by vectors.
        if (k % 32 == 0) {
            for (int64_t p = 0; p < panels.count; p += 2) {
                const T* panel = panels.first + p * panels.stride;
                multiply_tiles(rows, stride, panel,
                               p + 1 < panels.count ? panel + panels.stride : nullptr, k,
                               sums + p * kPanel, adds);
            }
            return;
        }
    }
#endif
    for (int64_t r = 0; r < num_rows; r += kTileRows) {
        const int64_t few = std::min<int64_t>(kTileRows, num_rows - r);
        const T* part = rows + r * stride;
        float* out = sums + r * kTileColumns;
        switch (panels.count) {
            case 1: multiply_few<1>(few, part, stride, panels, k, out, adds); break;
            case 2: multiply_few<2>(few, part, stride, panels, k, out, adds); break;
            case 3: multiply_few<kTilePanels - 1>(few, part, stride, panels, k, out, adds); break;
            default: multiply_few<kTilePanels>(few, part, stride, panels, k, out, adds);
        }
    }
}

// panel [k * 16] = inputs first .. first + k of a panel of bfloat16; both are even.
template <typename T>
void widen_bf16(const uint8_t* packed, int64_t first, int64_t k, T* panel) {
    const bf16* from = reinterpret_cast<const bf16*>(packed) + first * kPanel;
    for (int64_t i = 0; i < k; i += 2) {
        const Line line = load_line(from + i * kPanel);
        store(panel + i * kPanel, first_inputs(line));
        store(panel + (i + 1) * kPanel, second_inputs(line));
    }
}

// The same for rows of float32 and panels of bfloat16.
inline void multiply_rows(int64_t num_rows, const float* rows, int64_t stride, Panels<bf16> panels,
                          int64_t k, float* sums, bool adds = false) {
    for (int64_t r = 0; r < num_rows; r += kWideningRows) {
        const int64_t few = std::min<int64_t>(kWideningRows, num_rows - r);
        for (int64_t c = 0; c < panels.count; c += kWideningPanels) {
            const Panels<bf16> part = {panels.first + c * panels.stride, panels.stride,
                                       std::min<int64_t>(kWideningPanels, panels.count - c)};
            float* out = sums + r * kTileColumns + c * kPanel;
            if (part.count == 1) {
                multiply_few<1>(few, rows + r * stride, stride, part, k, out, adds);
            } else {
                multiply_few<kWideningPanels>(few, rows + r * stride, stride, part, k, out, adds);
            }
        }
    }
}
