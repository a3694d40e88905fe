// The KV pool of one layer: for each block and head the keys and values as panels (tiles.h), so that
// attention is two products. Keys: a panel holds 16 tokens, its inner dimension is the key's. Values:
// a panel holds 16 elements of the value, its inner dimension is the tokens.
#pragma once

#include "attention.h"
#include "tiles.h"

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Memory that is read soon, asked for line by line while other lines are worked on: a core waits for
// some sixteen lines at most, so asking for all at once would stop it.
class Ahead {
   public:
    Ahead() = default;
    // `lines` from `first` on, then `runs` times `run_lines`, `stride` bytes apart.
    Ahead(const void* first, int64_t lines) : at_(static_cast<const char*>(first)), left_(lines) {}
    void then(const void* run, int64_t run_lines, int64_t stride, int64_t runs) {
        run_ = static_cast<const char*>(run);
        run_lines_ = run_lines;
        stride_ = stride;
        runs_ = runs;
    }

    void ask() {
        if (left_ == 0) {
            if (runs_ == 0) return;
            --runs_;
            at_ = run_;
            run_ += stride_;
            left_ = run_lines_;
        }
        _mm_prefetch(at_, _MM_HINT_T0);
        at_ += 64;
        --left_;
    }
    void ask_rest() {
        while (left_ + runs_ > 0) ask();
    }

   private:
    const char* at_ = nullptr;
    const char* run_ = nullptr;
    int64_t left_ = 0, run_lines_ = 0, stride_ = 0, runs_ = 0;
};

template <typename T>
struct KvPool {
    static constexpr int64_t kPairs = sizeof(T) == 2 ? 2 : 1;
    // Tokens that one step of a product over values takes: what is behind a sequence's last token
    // up to there must be finite, for no weight of 0 removes another sequence's NaN.
    static constexpr int64_t kTokens = sizeof(T) == 2 ? 32 : 1;

    KvPool(const TmAttentionShape& shape, int64_t block_size, void* base)
        : base(static_cast<T*>(base)),
          heads(shape.num_kv_heads),
          key_dim(round_up(shape.key_dim, kPairs)),
          value_dim(shape.value_dim),
          slots(round_up(block_size, kPairs)),
          key_panels(round_up(block_size, kPanel) / kPanel),
          value_panels(round_up(shape.value_dim, kPanel) / kPanel) {}

    int64_t head_elements() const {
        return key_panels * key_stride() + value_panels * value_stride();
    }
    int64_t key_stride() const { return key_dim * kPanel; }
    int64_t value_stride() const { return slots * kPanel; }

    T* head(int64_t block, int64_t head) const { return base + (block * heads + head) * head_elements(); }
    T* keys(int64_t block, int64_t h) const { return head(block, h); }
    T* values(int64_t block, int64_t h) const { return head(block, h) + key_panels * key_stride(); }

    // key holds key_dim elements, an odd one's neighbour zeroed.
    void write_key(int64_t block, int64_t h, int64_t slot, const T* key) const {
        T* panel = keys(block, h) + slot / kPanel * key_stride() + slot % kPanel * kPairs;
        for (int64_t i = 0; i < key_dim; i += kPairs) {
            std::memcpy(panel + i * kPanel, key + i, kPairs * sizeof(T));
        }
    }

    void write_value(int64_t block, int64_t h, int64_t slot, const T* value) const {
        T* pair = values(block, h) + slot / kPairs * kPanel * kPairs + slot % kPairs;
        for (int64_t p = 0; p < value_panels; ++p, pair += value_stride()) {
            const int64_t count = std::min<int64_t>(kPanel, value_dim - p * kPanel);
            for (int64_t i = 0; i < count; ++i) pair[i * kPairs] = value[p * kPanel + i];
        }
    }

    // Zero the values behind a slot that a product takes together with it.
    void clear_behind(int64_t block, int64_t h, int64_t slot) const {
        const int64_t end = std::min(slots, round_up(slot + 1, kTokens));
        T* panel = values(block, h);
        for (int64_t p = 0; p < value_panels; ++p, panel += value_stride()) {
            T* pair = panel + slot / kPairs * kPanel * kPairs;
            // The other half of the slot's own pair, then whole pairs.
            for (int64_t i = slot % kPairs + 1; i < kPairs; ++i) {
                for (int64_t lane = 0; lane < kPanel; ++lane) pair[lane * kPairs + i] = T{};
            }
            const int64_t next = slot / kPairs * kPairs + kPairs;
            if (next < end) std::memset(panel + next * kPanel, 0, (end - next) * kPanel * sizeof(T));
        }
    }

    // What a read of the block's first `tokens` tokens touches.
    Ahead ahead(int64_t block, int64_t h, int64_t tokens) const {
        constexpr int64_t kLine = 64 / sizeof(T);
        Ahead lines(keys(block, h), round_up(tokens, kPanel) * key_dim / kLine);
        lines.then(values(block, h), (tokens * kPanel + kLine - 1) / kLine,
                   value_stride() * sizeof(T), value_panels);
        return lines;
    }

    T* base;
    int64_t heads, key_dim, value_dim, slots, key_panels, value_panels;
};
