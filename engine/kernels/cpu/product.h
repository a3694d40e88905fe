// Matrix products of a team: activations [m, k] times a packed weight [n, k], each output tile
// handed to a function that finishes it (bias, residual, gate) while it is in the nearest cache.
// This is the product of plain weights; quantised.h chooses among the formats.
#pragma once

#include "tile_product.h"

// Rows of activations that are worked on while a group of panels stays in the second-level cache.
constexpr int64_t kMaxBlockRows = 96;

// How many rows each piece of work takes: few enough that all threads get several pieces.
inline int64_t block_rows(int64_t m, int64_t groups, int threads) {
    int64_t rows = std::min(m, kMaxBlockRows);
    while (rows > 2 * kMaxRows && groups * ((m + rows - 1) / rows) < 4 * threads) rows /= 2;
    return (rows + kMaxRows - 1) / kMaxRows * kMaxRows;
}

// Ask for a share of the panels that this thread is likely to work on next.
template <typename T>
void prefetch_share(const T* next, int64_t elements, int64_t part, int64_t parts) {
    constexpr int64_t kLine = 64 / sizeof(T);
    const int64_t lines = elements / kLine;
    const int64_t end = lines * (part + 1) / parts;
    for (int64_t i = lines * part / parts; i < end; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(next + i * kLine), _MM_HINT_T1);
    }
}

// One thread's work at a product of rows that lie one behind the other, with panels of W.
template <typename W, typename T, typename Finish>
void vector_product(const T* rows, int64_t m, const TmMatrix& weight, Team& team,
                    const Finish& finish) {
    const int64_t k = weight.inputs, panels = (weight.outputs + kPanel - 1) / kPanel;
    const int64_t groups = (panels + kTilePanels - 1) / kTilePanels;
    const int64_t block = block_rows(m, groups, team.size());
    const int64_t blocks = (m + block - 1) / block;
    const W* base = static_cast<const W*>(weight.panels);
    alignas(64) float sums[kMaxRows * kTileColumns];
    for (int64_t item = team.take(); item < groups * blocks; item = team.take()) {
        const int64_t first = item / blocks * kTilePanels;
        const int64_t here = std::min<int64_t>(kTilePanels, panels - first);
        const int64_t next = std::min(first + kTilePanels * team.size(), panels - here);
        const int64_t start = item % blocks * block, end = std::min(m, start + block);
        const int64_t parts = (end - start + kMaxRows - 1) / kMaxRows;
        const Panels<W> group = {base + first * panel_elements(k), panel_elements(k), here};
        const int64_t column = first * kPanel;
        const int64_t columns = std::min(here * kPanel, weight.outputs - column);
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t row = start + part * kMaxRows;
            const int64_t count = std::min<int64_t>(kMaxRows, end - row);
            multiply_rows(count, rows + row * k, k, group, k, sums);
            if (item % blocks == blocks - 1) {
                prefetch_share(base + next * panel_elements(k), here * panel_elements(k), part,
                               parts);
            }
            for (int64_t r = 0; r < count; ++r) {
                finish(row + r, column, columns, sums + r * kTileColumns);
            }
        }
    }
}

// For each tile finish(row, first_column, num_columns, const float* sums) is called once per row,
// with whole panels of sums; every thread of the team calls product, which ends with a barrier
// unless there are no rows. A thread gets the columns of a row in ascending order.
template <typename W, typename T, typename Finish>
void product(const Rows<T>& rows, int64_t m, const TmMatrix& weight, Team& team,
             const Finish& finish) {
    if (m == 0) return;
#if defined(TM_HAS_AMX)
    if constexpr (sizeof(T) == 2) {
        if (rows.in_bands) {
            TileProduct<Finish>(rows, m, weight, team.size(), finish).run(team);
            team.barrier();
            return;
        }
    }
#endif
    vector_product<W>(rows.base, m, weight, team, finish);
    team.barrier();
}
