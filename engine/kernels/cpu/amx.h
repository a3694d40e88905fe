// The tile registers of AMX: eight, of 16 rows of 64 bytes. All tiles here have full size, so the
// configuration is one constant.
#pragma once

#include <cstdint>

#if defined(__AMX_BF16__) || defined(TM_EMULATE_AMX)
#define TM_HAS_AMX 1
#endif

#if defined(__AMX_BF16__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// Linux asks each process to request the registers' large state; false if it refuses.
inline bool request_tiles() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Each thread has tiles of its own to configure.
inline void configure_tiles() {
    const TileConfig config;
    // g++ 12 believes that _tile_loadconfig reads nothing and drops the stores before it.
    asm volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
}
inline void release_tiles() { _tile_release(); }

#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, p, stride) _tile_loadd(t, p, stride)
#define TILE_LOAD_ONCE(t, p, stride) _tile_stream_loadd(t, p, stride)
#define TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define TILE_MULTIPLY(c, a, b) _tile_dpbf16ps(c, a, b)
#define TILE_MULTIPLY_INT8(c, a, b) _tile_dpbssd(c, a, b)

#elif defined(TM_EMULATE_AMX)
// The same registers in plain loops: for checking the indices on a machine without them.
#include <cstring>

inline thread_local float tiles[8][16][16];
inline bool request_tiles() { return true; }
inline void configure_tiles() {}
inline void release_tiles() {}
inline void tile_load(int t, const void* p, int64_t stride) {
    for (int row = 0; row < 16; ++row) {
        std::memcpy(tiles[t][row], static_cast<const char*>(p) + row * stride, 64);
    }
}
inline void tile_store(int t, void* p, int64_t stride) {
    for (int row = 0; row < 16; ++row) {
        std::memcpy(static_cast<char*>(p) + row * stride, tiles[t][row], 64);
    }
}
inline float tile_element(int t, int row, int i) {
    uint16_t half[32];
    std::memcpy(half, tiles[t][row], 64);
    const uint32_t bits = static_cast<uint32_t>(half[i]) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline void tile_multiply(int c, int a, int b) {
    for (int m = 0; m < 16; ++m) {
        for (int n = 0; n < 16; ++n) {
            for (int k = 0; k < 32; ++k) {
                tiles[c][m][n] += tile_element(a, m, k) * tile_element(b, k / 2, 2 * n + k % 2);
            }
        }
    }
}
inline void tile_multiply_int8(int c, int a, int b) {
    int8_t left[16][64], right[16][64];
    int32_t sums[16][16];
    std::memcpy(left, tiles[a], sizeof left);
    std::memcpy(right, tiles[b], sizeof right);
    std::memcpy(sums, tiles[c], sizeof sums);
    for (int m = 0; m < 16; ++m) {
        for (int n = 0; n < 16; ++n) {
            for (int k = 0; k < 64; ++k) sums[m][n] += left[m][k] * right[k / 4][4 * n + k % 4];
        }
    }
    std::memcpy(tiles[c], sums, sizeof sums);
}
#define TILE_ZERO(t) std::memset(tiles[t], 0, sizeof tiles[t])
#define TILE_LOAD(t, p, stride) tile_load(t, p, stride)
#define TILE_LOAD_ONCE(t, p, stride) tile_load(t, p, stride)
#define TILE_STORE(t, p, stride) tile_store(t, p, stride)
#define TILE_MULTIPLY(c, a, b) tile_multiply(c, a, b)
#define TILE_MULTIPLY_INT8(c, a, b) tile_multiply_int8(c, a, b)

#else
inline bool request_tiles() { return true; }
inline void configure_tiles() {}
inline void release_tiles() {}
#endif
