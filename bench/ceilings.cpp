// What the machine gives at most, for bench/products.py: TFLOP/s of tiles on their own operands in
// the nearest cache, and GB/s of reading memory.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "amx.h"

namespace {

template <typename Work>
double shortest(int threads, int rounds, const Work& work) {
    double best = 1e9;
    for (int round = 0; round < rounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads)
        work(omp_get_thread_num());
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
        best = std::min(best, spent.count());
    }
    return best;
}

}  // namespace

extern "C" double tile_rate(int threads) {
#if defined(TM_HAS_AMX)
    if (!request_tiles()) return 0;
    constexpr int kSteps = 20000;
    const double seconds = shortest(threads, 20, [](int) {
        alignas(64) static thread_local uint16_t operands[4][512];
        for (auto& tile : operands) std::fill(tile, tile + 512, uint16_t{0x3f80});
        configure_tiles();
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int i = 0; i < kSteps; ++i) {
            TILE_LOAD(6, operands[0], 64);
            TILE_LOAD(7, operands[1], 64);
            TILE_LOAD(4, operands[2], 64);
            TILE_LOAD(5, operands[3], 64);
            TILE_MULTIPLY(0, 4, 6);
            TILE_MULTIPLY(1, 4, 7);
            TILE_MULTIPLY(2, 5, 6);
            TILE_MULTIPLY(3, 5, 7);
        }
        release_tiles();
    });
    return threads * 4.0 * kSteps * 16 * 16 * 32 * 2 / seconds / 1e12;
#else
    return 0.0 * threads;
#endif
}

extern "C" double read_rate(const uint64_t* memory, int64_t words, int threads) {
    const double seconds = shortest(threads, 5, [&](int thread) {
        const int64_t part = words / threads;
        const uint64_t* first = memory + thread * part;
        uint64_t sum = 0;
        for (int64_t i = 0; i < part; ++i) sum += first[i];
        asm volatile("" ::"r"(sum));  // or the loop would be left out
    });
    return 8.0 * words / seconds / 1e9;
}
