// Products with weights of 8 or 4 bits; tiles_int8.h and int4.h describe their panels.
//
// With 8 bits the rows are rounded to int8 too, each by a scale of its own (its largest element over
// 127), so that the sums are whole numbers; weights have a scale per output. With 4 bits only bytes
// are saved: panels are unpacked into the nearest cache, and the product is that of the rows' type.
#pragma once

#include "int4.h"
#include "product.h"
#include "rounding.h"
#include "tiles_int8.h"

// Where the rows of a product lie as int8; shared by the team.
struct Int8Rows {
    int8_t* rows;   // [rows padded to 32][int8_stride]
    float* scales;  // [rows]
};

inline int64_t int8_stride(int64_t inputs) {
    return (inputs + kInt8Step - 1) / kInt8Step * kInt8Step;
}

// work(first_panel, num_panels, first_row, end_row) for each piece of a product, shared by the team;
// ends with a barrier.
template <typename Work>
void for_pieces(int64_t m, int64_t outputs, int64_t block, Team& team, const Work& work) {
    const int64_t panels = (outputs + kPanel - 1) / kPanel;
    const int64_t groups = (panels + kTilePanels - 1) / kTilePanels;
    const int64_t blocks = (m + block - 1) / block;
    for (int64_t item = team.take(); item < groups * blocks; item = team.take()) {
        const int64_t first = item / blocks * kTilePanels, row = item % blocks * block;
        work(first, std::min<int64_t>(kTilePanels, panels - first), row, std::min(m, row + block));
    }
    team.barrier();
}

// As `product`, of rows made into int8.
template <typename T, typename Finish>
void product_int8(const T* rows, int64_t stride, int64_t m, const TmMatrix& weight, Int8Rows space,
                  Team& team, const Finish& finish) {
    if (m == 0) return;
    constexpr int64_t kFew = 4, kBlockRows = 128;
    const int64_t k = int8_stride(weight.inputs);
    for (int64_t i = team.take(); i * kFew < m; i = team.take()) {
        for (int64_t row = i * kFew; row < std::min(m, (i + 1) * kFew); ++row) {
            int8_t* out = space.rows + row * k;
            space.scales[row] = quantise_row(rows + row * stride, weight.inputs, out);
            std::memset(out + weight.inputs, 0, k - weight.inputs);
        }
    }
    team.barrier();
    alignas(64) int32_t sums[kMaxRows * kTileColumns];
    alignas(64) float scaled[kTileColumns];
    for_pieces(m, weight.outputs, kBlockRows, team, [&](int64_t first, int64_t num_panels,
                                                        int64_t start, int64_t end) {
        const int8_t* panel = static_cast<const int8_t*>(weight.panels) + first * panel_elements(k);
        const Panels<int8_t> panels = {panel, panel_elements(k), num_panels};
        const int64_t column = first * kPanel;
        const int64_t columns = std::min(num_panels * kPanel, weight.outputs - column);
        for (int64_t row = start; row < end; row += kMaxRows) {
            const int64_t count = std::min<int64_t>(kMaxRows, end - row);
            multiply_rows_int8(count, space.rows + row * k, k, panels, weight.offsets + column, k,
                               sums);
            for (int64_t r = 0; r < count; ++r) {
                const Vec row_scale = splat(space.scales[row + r]);
                for (int64_t i = 0; i < num_panels * kPanel; i += kLanes) {
                    const Vec whole = load(sums + r * kTileColumns + i);
                    store(scaled + i, whole * row_scale * load(weight.scales + column + i));
                }
                finish(row + r, column, columns, scaled);
            }
        }
    });
}

// As `product`, of weights whose panels unpack(panel, first input, inputs, T*) makes into those of T.
template <typename T, typename Unpack, typename Finish>
void product_unpacked(const T* rows, int64_t stride, int64_t m, const TmMatrix& weight,
                      int64_t panel_bytes, const Unpack& unpack, Team& team,
                      const Finish& finish) {
    if (m == 0) return;
    // Unpacking is paid once for each block of rows; a part of k at a time stays in the caches.
    constexpr int64_t kBlockRows = 256, kPart = 512;
    alignas(64) T unpacked[kTilePanels * kPart * kPanel];
    alignas(64) float sums[kBlockRows * kTileColumns];
    for_pieces(m, weight.outputs, kBlockRows, team, [&](int64_t first, int64_t num_panels,
                                                        int64_t start, int64_t end) {
        const uint8_t* packed = static_cast<const uint8_t*>(weight.panels) + first * panel_bytes;
        for (int64_t done = 0; done < weight.inputs; done += kPart) {
            const int64_t k = std::min(kPart, weight.inputs - done);
            for (int64_t p = 0; p < num_panels; ++p) {
                unpack(packed + p * panel_bytes, done, k, unpacked + p * panel_elements(k));
            }
            const Panels<T> panels = {unpacked, panel_elements(k), num_panels};
            for (int64_t row = start; row < end; row += kMaxRows) {
                multiply_rows(std::min<int64_t>(kMaxRows, end - row), rows + row * stride + done,
                              stride, panels, k, sums + (row - start) * kTileColumns, done > 0);
            }
        }
        const int64_t column = first * kPanel;
        const int64_t columns = std::min(num_panels * kPanel, weight.outputs - column);
        for (int64_t row = start; row < end; ++row) {
            finish(row, column, columns, sums + (row - start) * kTileColumns);
        }
    });
}

// As `product`, of weights of 4 bits.
template <typename T, typename Finish>
void product_int4(const Rows<T>& rows, int64_t m, const TmMatrix& weight, Team& team,
                  const Finish& finish) {
    const int64_t panel_bytes = weight.inputs / kInt4Group * kInt4GroupBytes;
    product_unpacked(rows.base, rows.width, m, weight, panel_bytes, unpack_int4<T>, team, finish);
}

// As `product`, of rows of float32 and panels of bfloat16, which few rows widen on their way and
// more of them once for all.
template <typename T, typename Finish>
void product_bf16(const Rows<T>& rows, int64_t m, const TmMatrix& weight, Team& team,
                  const Finish& finish) {
    constexpr int64_t kFewRows = 18;
    if (m <= kFewRows) return product<bf16>(rows, m, weight, team, finish);
    const int64_t panel_bytes = panel_elements(weight.inputs) * sizeof(bf16);
    product_unpacked(rows.base, rows.width, m, weight, panel_bytes, widen_bf16<T>, team, finish);
}

// The product that the weight's format asks for, of rows laid out by rows_for.
template <typename T, typename Finish>
void any_product(const Rows<T>& rows, int64_t m, const TmMatrix& weight, Int8Rows space, Team& team,
                 const Finish& finish) {
    switch (weight.format) {
        case TM_INT8: return product_int8(rows.base, rows.width, m, weight, space, team, finish);
        case TM_INT4: return product_int4(rows, m, weight, team, finish);
        case TM_BF16: return product_bf16(rows, m, weight, team, finish);
        default: return product<T>(rows, m, weight, team, finish);
    }
}
