// 32 rows times 32 columns in tile registers, with panels that lie where block tables put them.
#pragma once

#include "kv_pool.h"

// Whether squares of tiles can be cut from a pool: whole steps of keys and of tokens.
template <typename T>
bool fills_tiles(const KvPool<T>& pool, int64_t block_size) {
#if defined(TM_HAS_AMX)
    return sizeof(T) == 2 && pool.key_dim % 32 == 0 && block_size % 32 == 0;
#else
    return pool.key_dim < 0 && block_size < 0;
#endif
}

#if defined(TM_HAS_AMX)
struct Square {
    const bf16* rows;
    int64_t stride;      // elements between rows, and between two steps along them 32
    int64_t steps;       // of 32 inputs
    float* sums;
    int64_t sums_stride;
    bool adds;           // to the sums that are there
    bool has_low;        // more than 16 rows
    bool has_second;     // more than 16 columns
};

// panel_at(step) is the first panel's 16 lines of that step; the second's are `panel_stride` elements
// further.
template <typename PanelAt>
void multiply_square(const Square& s, int64_t panel_stride, const PanelAt& panel_at) {
    const int64_t bytes = s.stride * 2, sum_bytes = s.sums_stride * 4;
    float* low = s.sums + 16 * s.sums_stride;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    if (s.adds) {
        TILE_LOAD(0, s.sums, sum_bytes);
        if (s.has_second) TILE_LOAD(1, s.sums + kPanel, sum_bytes);
        if (s.has_low) TILE_LOAD(2, low, sum_bytes);
        if (s.has_low && s.has_second) TILE_LOAD(3, low + kPanel, sum_bytes);
    }
    for (int64_t i = 0; i < s.steps; ++i) {
        const bf16* panel = panel_at(i);
        TILE_LOAD(6, panel, 64);
        TILE_LOAD(4, s.rows + i * 32, bytes);
        TILE_MULTIPLY(0, 4, 6);
        if (s.has_low) {
            TILE_LOAD(5, s.rows + 16 * s.stride + i * 32, bytes);
            TILE_MULTIPLY(2, 5, 6);
        }
        if (!s.has_second) continue;
        TILE_LOAD(7, panel + panel_stride, 64);
        TILE_MULTIPLY(1, 4, 7);
        if (s.has_low) TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, s.sums, sum_bytes);
    if (s.has_second) TILE_STORE(1, s.sums + kPanel, sum_bytes);
    if (s.has_low) TILE_STORE(2, low, sum_bytes);
    if (s.has_low && s.has_second) TILE_STORE(3, low + kPanel, sum_bytes);
}
#endif
