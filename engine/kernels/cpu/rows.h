// Where the rows of activations lie that a product reads.
//
// Vector kernels read them one behind the other. AMX reads tiles of 16 rows of 32 elements; a tile
// out of long rows touches 16 places far apart, so for AMX the rows lie tile by tile: bands of 32
// rows, in a band steps of 32 elements, in a step [32 rows][32 elements] (two tiles).
#pragma once

#include <cstring>

#include "matrix.h"
#include "tiles.h"

constexpr int64_t kBandRows = 32, kBandStep = 32;
constexpr int64_t kBandTile = 16 * kBandStep;  // elements

// One row: column c, a multiple of 16, starts 16 neighbouring elements at at(c).
template <typename T>
struct Row {
    T* first;
    int64_t step;  // elements between two runs of 32
    T* at(int64_t column) const {
        return first + column / kBandStep * step + column % kBandStep;
    }
};

template <typename T>
struct Rows {
    T* base;
    int64_t width;   // elements of a row, a multiple of 32
    bool in_bands;

    Row<T> row(int64_t r) const {
        if (!in_bands) return {base + r * width, kBandStep};
        return {base + r / kBandRows * kBandRows * width + r % kBandRows * kBandStep,
                kBandRows * kBandStep};
    }
    const T* band(int64_t r) const { return base + r * width; }
};

// Whether the product with the weight reads its rows in bands; other formats read plain rows.
template <typename T>
bool uses_bands([[maybe_unused]] const TmMatrix& weight) {
#if defined(TM_HAS_AMX)
    return sizeof(T) == 2 && weight.format == TM_PLAIN;
#else
    return false;
#endif
}

template <typename T>
Rows<T> rows_for(T* base, const TmMatrix& weight) {
    return {base, weight.inputs, uses_bands<T>(weight)};
}

template <typename T>
void copy_row(const T* source, int64_t width, Row<T> to) {
    for (int64_t i = 0; i < width; i += kPanel) {
        std::memcpy(to.at(i), source + i, kPanel * sizeof(T));
    }
}
