// The matrix product with AMX: 32 rows times 32 outputs at once, 2 x 2 tiles of sums.
//
// What it is shaped by (measured on Sapphire Rapids, docs/performance.md): a product of tiles takes
// as long as two loads from the first-level cache, so one side must come from there. A band of rows
// stays in it while a chunk of panels streams by from the second-level cache, loaded with the hint
// that they are used once; without it they push the band out, which costs a quarter of the speed.
// The next chunk is fetched from memory meanwhile. Sums are finished (bias, gate, residual) between
// the tile instructions of the next 32 outputs, which keep another unit busy.
#pragma once

#include "matrix.h"
#include "rows.h"
#include "team.h"

#if defined(TM_HAS_AMX)

constexpr int64_t kChunkPairs = 8;            // pairs of panels in a chunk, at most
constexpr int64_t kChunkBytes = 400 << 10;    // and their bytes; two chunks are in flight
constexpr int64_t kBlockBytes = 1100 << 10;   // rows that stay in the second-level cache
constexpr int64_t kMaxDepth = 576;            // inputs at once: 36 KiB of a band
constexpr int64_t kPairColumns = 2 * kPanel;
constexpr int64_t kPairSums = kBandRows * kPairColumns;

// How a product is cut into items; equal for all threads.
struct TileCut {
    int64_t inputs, panels, pairs;
    int64_t chunk_pairs, chunks;
    int64_t block_rows, blocks;
    int64_t depth;                  // inputs of one pass over the chunk

    TileCut(int64_t m, const TmMatrix& weight, int threads)
        : inputs(weight.inputs),
          panels((weight.outputs + kPanel - 1) / kPanel),
          pairs((panels + 1) / 2) {
        // Each thread gets a few items, or the last one is waited for.
        const int64_t share = (pairs + 3 * threads - 1) / (3 * threads);
        const int64_t fits = kChunkBytes / (kPairColumns * inputs * 2);
        chunk_pairs = std::max<int64_t>(1, std::min({kChunkPairs, share, fits}));
        chunks = (pairs + chunk_pairs - 1) / chunk_pairs;
        const int64_t bands = (m + kBandRows - 1) / kBandRows;
        const int64_t cached = std::max<int64_t>(1, kBlockBytes / (kBandRows * inputs * 2));
        blocks = (bands + cached - 1) / cached;
        while (chunks * blocks < 3 * threads && blocks < bands) ++blocks;
        block_rows = (bands + blocks - 1) / blocks * kBandRows;
        blocks = (m + block_rows - 1) / block_rows;
        const int64_t passes = (inputs + kMaxDepth - 1) / kMaxDepth;
        depth = (inputs / kBandStep + passes - 1) / passes * kBandStep;
    }
    int64_t items() const { return blocks * chunks; }
    int64_t first_pair(int64_t item) const { return item % chunks * chunk_pairs; }
    int64_t num_pairs(int64_t item) const {
        return std::min(chunk_pairs, pairs - first_pair(item));
    }
};

// Panels that will be needed next, asked for a few lines at a time.
struct Prefetch {
    const char* next = nullptr;
    int64_t lines_per_step = 0;
    void step() {
        for (int64_t i = 0; i < lines_per_step; ++i) {
            _mm_prefetch(next + i * 64, _MM_HINT_T1);
        }
        next += lines_per_step * 64;
    }
};

// 32 rows of sums that wait to be finished.
template <typename Finish>
struct Waiting {
    const Finish& finish;
    const float* sums = nullptr;
    int64_t row = 0, column = 0, columns = 0, rows = 0, done = 0;
    void step() {
        if (done >= rows) return;
        finish(row + done, column, columns, sums + done * kPairColumns);
        ++done;
        if (done >= rows) return;
        finish(row + done, column, columns, sums + done * kPairColumns);
        ++done;
    }
    void rest() {
        while (done < rows) step();
    }
};

// One thread's work at one product.
template <typename Finish>
class TileProduct {
   public:
    TileProduct(const Rows<bf16>& rows, int64_t m, const TmMatrix& weight, int threads,
                const Finish& finish)
        : rows_(rows),
          m_(m),
          weight_(weight),
          cut_(m, weight, threads),
          waiting_{finish} {}

    void run(Team& team) {
        for (int64_t item = team.take(), next; item < cut_.items(); item = next) {
            next = team.take();
            compute(item, next);
        }
    }

   private:
    void compute(int64_t item, int64_t next) {
        const int64_t start = item / cut_.chunks * cut_.block_rows;
        const int64_t end = std::min(m_, start + cut_.block_rows);
        const int64_t bands = (end - start + kBandRows - 1) / kBandRows;
        const int64_t steps = bands * cut_.inputs / kBandStep * cut_.num_pairs(item);
        prefetch_ = {};
        if (next < cut_.items()) {
            const int64_t lines = cut_.num_pairs(next) * cut_.inputs;
            prefetch_ = {reinterpret_cast<const char*>(panel(2 * cut_.first_pair(next))),
                         (lines + steps - 1) / steps};
        }
        for (int64_t row = start; row < end; row += kBandRows) {
            for (int64_t top = 0; top < cut_.inputs; top += cut_.depth) {
                const int64_t stop = std::min(cut_.inputs, top + cut_.depth);
                for (int64_t i = 0; i < cut_.num_pairs(item); ++i) {
                    multiply_pair_of_panels(row, end, cut_.first_pair(item) + i, top, stop);
                }
            }
        }
        waiting_.rest();
    }

    // Sums of 32 rows and a pair of panels over inputs top .. stop, added to those before `top`.
    void multiply_pair_of_panels(int64_t row, int64_t end, int64_t pair, int64_t top,
                                 int64_t stop) {
        constexpr int64_t kRowBytes = kPairColumns * sizeof(float);
        // Sums of several passes lie side by side; those of one are finished before the next.
        const bool is_one_pass = cut_.depth == cut_.inputs;
        float* sums = sums_ + (is_one_pass ? 0 : pair % cut_.chunk_pairs) * kPairSums;
        if (top > 0) {
            TILE_LOAD(0, sums, kRowBytes);
            TILE_LOAD(1, sums + kPanel, kRowBytes);
            TILE_LOAD(2, sums + kPairSums / 2, kRowBytes);
            TILE_LOAD(3, sums + kPairSums / 2 + kPanel, kRowBytes);
        } else {
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
        }
        const bf16* first = panel(2 * pair);
        // A last panel without a partner is multiplied twice.
        const bf16* second = 2 * pair + 1 < cut_.panels ? panel(2 * pair + 1) : first;
        const bf16* a = rows_.band(row) + top * kBandRows;
        for (int64_t k = top; k < stop; k += kBandStep, a += 2 * kBandTile) {
            TILE_LOAD_ONCE(6, first + k * kPanel, 64);
            TILE_LOAD_ONCE(7, second + k * kPanel, 64);
            TILE_LOAD(4, a, 64);
            TILE_MULTIPLY(0, 4, 6);
            TILE_MULTIPLY(1, 4, 7);
            TILE_LOAD(5, a + kBandTile, 64);
            TILE_MULTIPLY(2, 5, 6);
            TILE_MULTIPLY(3, 5, 7);
            prefetch_.step();
            waiting_.step();
        }
        waiting_.rest();
        TILE_STORE(0, sums, kRowBytes);
        TILE_STORE(1, sums + kPanel, kRowBytes);
        TILE_STORE(2, sums + kPairSums / 2, kRowBytes);
        TILE_STORE(3, sums + kPairSums / 2 + kPanel, kRowBytes);
        if (stop < cut_.inputs) return;
        waiting_.sums = sums;
        waiting_.row = row;
        waiting_.rows = std::min(kBandRows, end - row);
        waiting_.column = pair * kPairColumns;
        waiting_.columns = std::min(kPairColumns, weight_.outputs - waiting_.column);
        waiting_.done = 0;
    }

    const bf16* panel(int64_t index) const {
        return static_cast<const bf16*>(weight_.panels) + index * panel_elements(cut_.inputs);
    }

    const Rows<bf16>& rows_;
    const int64_t m_;
    const TmMatrix& weight_;
    const TileCut cut_;
    Waiting<Finish> waiting_;
    Prefetch prefetch_;
    alignas(64) float sums_[kChunkPairs * kPairSums];
};

#endif
