// A packed weight.
#pragma once

#include <cstdint>

// How a weight is packed; tiles.h, tiles_int8.h and int4.h describe the panels. TM_BF16 is panels of
// bfloat16 for rows of float32: exact where the weights were bfloat16 before.
enum TmFormat : int32_t { TM_PLAIN = 0, TM_INT8 = 1, TM_INT4 = 2, TM_BF16 = 3 };

extern "C" {
struct TmMatrix {
    const void* panels;             // ceil(outputs / 16) panels
    const float* bias;              // [outputs], or null
    int64_t outputs;
    int64_t inputs;                 // a multiple of 32
    // Of TM_INT8, for each output up to the last panel's end; else null.
    const float* scales;            // what its weights are multiplied by
    const int32_t* offsets;         // -128 times the sum of its weights
    int32_t format;                 // TmFormat; quantised.h computes the others
};
}
