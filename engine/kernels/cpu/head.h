// The last product of a step: logits for the rows that want them, the likeliest token for all.
#pragma once

#include <cstring>

#include "workspace.h"

template <typename T>
class Head {
   public:
    Head(const TmMatrix& weight, const TmStep& step, const Workspace<T>& work, int thread)
        : weight_(weight), step_(step), int8_(work.int8), best_(work.best), thread_(thread) {}

    // rows: behind the last norm. Every thread of the team calls it.
    void run(const Rows<T>& rows, Team& team) const {
        if (step_.best != nullptr) {
            for (int64_t row = 0; row < step_.num_rows; ++row) seen(thread_, row).clear();
        }
        any_product(rows, step_.num_rows, weight_, int8_, team,
                [&](int64_t row, int64_t column, int64_t columns, const float* sums) {
                    if (weight_.bias == nullptr) return take(row, column, columns, sums);
                    alignas(64) float biased[kTileColumns];
                    for (int64_t i = 0; i < columns; ++i) {
                        biased[i] = sums[i] + weight_.bias[column + i];
                    }
                    take(row, column, columns, biased);
                });
        if (step_.best != nullptr && thread_ == 0) choose(team.size());
    }

   private:
    void take(int64_t row, int64_t column, int64_t columns, const float* logits) const {
        if (row < step_.num_logits) {
            std::memcpy(step_.logits + row * weight_.outputs + column, logits,
                        columns * sizeof(float));
        }
        if (step_.best == nullptr) return;
        const int64_t count = std::min(columns, step_.num_ids - column);
        if (count > 0) seen(thread_, row).see(logits, column, count);
    }

    // Too little work to share.
    void choose(int threads) const {
        for (int64_t row = 0; row < step_.num_rows; ++row) {
            Best best;
            for (int thread = 0; thread < threads; ++thread) best.add(seen(thread, row));
            step_.best[row] = best.column;
            step_.finite[row] = best.finite;
        }
    }

    BestSeen seen(int thread, int64_t row) const {
        return {best_ + (thread * step_.num_rows + row) * kBestFloats};
    }

    const TmMatrix& weight_;
    const TmStep& step_;
    const Int8Rows int8_;
    float* best_;
    const int thread_;
};
