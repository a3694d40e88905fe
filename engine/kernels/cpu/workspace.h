// The buffers of a step, and a watch for its parts.
#pragma once

#include <algorithm>
#include <chrono>

#include "best.h"
#include "quantised.h"
#include "stack.h"

constexpr int64_t kRowPadding = kBandRows;  // AMX reads whole tiles of rows

inline int64_t padded(int64_t n) { return (n + kRowPadding - 1) / kRowPadding * kRowPadding; }

// Adds the time since the last call to a figure; only the first thread's counts.
class Stopwatch {
   public:
    explicit Stopwatch(bool counts) : counts_(counts), last_(Clock::now()) {}
    void add_to(double& figure) {
        if (!counts_) return;
        const Clock::time_point now = Clock::now();
        figure += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

   private:
    using Clock = std::chrono::steady_clock;
    const bool counts_;
    Clock::time_point last_;
};

struct Widths {
    int64_t query, key, value, attended;  // elements of all heads of a row
    explicit Widths(const TmAttentionShape& a)
        : query(int64_t{a.num_heads} * a.key_dim),
          key(int64_t{a.num_kv_heads} * a.key_dim),
          value(int64_t{a.num_kv_heads} * a.value_dim),
          attended(int64_t{a.num_heads} * a.value_dim) {}
    int64_t qkv() const { return query + key + value; }
};

// The buffers of a step, cut out of one piece of memory.
template <typename T>
struct Workspace {
    float* residual;    // [tokens, hidden]
    T* normed;          // [tokens, hidden]
    T* qkv;             // [tokens, queries + keys + values]
    T* attended;        // [tokens, heads * value_dim]
    T* gated;           // [tokens, intermediate]
    float* kept_residual;  // [rows, hidden], of the wanted rows alone
    T* kept_attended;      // [rows, heads * value_dim]
    Int8Rows int8;      // the rows of the product that is computed, where its weights are int8
    T* banded;             // [tokens, heads * value_dim] as AMX reads them
    float* best;           // [threads][rows][kBestFloats]
    int64_t bytes = 0;

    Workspace(const TmStack& stack, int64_t num_tokens, int64_t num_rows, int32_t num_threads,
              char* base) {
        const Widths widths(stack.layers[0].attention);
        const int64_t rows = padded(std::max(num_tokens, num_rows)), kept = padded(num_rows);
        residual = cut<float>(base, rows * stack.hidden);
        normed = cut<T>(base, rows * stack.hidden);
        qkv = cut<T>(base, rows * widths.qkv());
        attended = cut<T>(base, rows * widths.attended);
        gated = cut<T>(base, rows * stack.intermediate);
        kept_residual = cut<float>(base, kept * stack.hidden);
        kept_attended = cut<T>(base, kept * widths.attended);
        const int64_t widest = std::max({stack.hidden, widths.attended, stack.intermediate});
        int8.rows = cut<int8_t>(base, rows * int8_stride(widest));
        int8.scales = cut<float>(base, rows);
        banded = cut<T>(base, rows * widths.attended);
        best = cut<float>(base, num_threads * num_rows * kBestFloats);
    }

   private:
    template <typename E>
    E* cut(char* base, int64_t elements) {
        E* part = reinterpret_cast<E*>(base + bytes);
        bytes += (elements * static_cast<int64_t>(sizeof(E)) + 63) / 64 * 64;
        return part;
    }
};
