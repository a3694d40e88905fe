// The KV pool of one layer: for each block and head the keys and values as panels (tiles.h), so that
// attention is two products. Keys: a panel holds 16 tokens, its inner dimension is the key's. Values:
// a panel holds 16 elements of the value, its inner dimension is the tokens.
//
// In int8 the panels have the same order with a byte an element, and behind them lie the scales in
// float32, of the keys and of the values of each token. `open` makes them plain again, a block of a
// head at a time, in the nearest cache: memory is what single queries wait for.
#pragma once

#include <vector>

#include "attention.h"
#include "rounding.h"
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
    void ask_some(int lines) {
        for (int i = 0; i < lines; ++i) ask();
    }
    void ask_rest() {
        while (left_ + runs_ > 0) ask();
    }

   private:
    const char* at_ = nullptr;
    const char* run_ = nullptr;
    int64_t left_ = 0, run_lines_ = 0, stride_ = 0, runs_ = 0;
};

// The panels of a block's head, ready for products.
template <typename T>
struct OpenBlock {
    const T* keys;
    const T* values;
};

template <typename T>
struct KvPool {
    static constexpr int64_t kPairs = sizeof(T) == 2 ? 2 : 1;
    // Tokens that one step of a product over values takes: what is behind a sequence's last token
    // up to there must be finite, for no weight of 0 removes another sequence's NaN.
    static constexpr int64_t kTokens = sizeof(T) == 2 ? 32 : 1;

    KvPool(const TmAttentionShape& shape, int64_t block_size, void* base)
        : base(static_cast<char*>(base)),
          is_int8(shape.pool == TM_POOL_INT8),
          heads(shape.num_kv_heads),
          key_dim(round_up(shape.key_dim, kPairs)),
          value_dim(shape.value_dim),
          slots(round_up(block_size, kPairs)),
          key_panels(round_up(block_size, kPanel) / kPanel),
          value_panels(round_up(shape.value_dim, kPanel) / kPanel) {}

    // Elements of a block's head.
    int64_t head_elements() const {
        return key_panels * key_stride() + value_panels * value_stride();
    }
    int64_t head_bytes() const {
        if (!is_int8) return head_elements() * sizeof(T);
        return round_up(head_elements(), 64) + 2 * key_panels * kPanel * sizeof(float);
    }
    int64_t key_stride() const { return key_dim * kPanel; }
    int64_t value_stride() const { return slots * kPanel; }

    // The other half of a pair is zeroed with its first, for products take both: it may hold what was
    // guessed wrong. key holds key_dim elements, an odd one's neighbour zeroed.
    void write_key(int64_t block, int64_t h, int64_t slot, const T* key) const {
        if (!is_int8) return put_key(head<T>(block, h), slot, key);
        int8_t* codes = codes_of(key_dim);
        key_scales(block, h)[slot] = quantise_row(key, key_dim, codes);
        put_key(head<int8_t>(block, h), slot, codes);
    }

    void write_value(int64_t block, int64_t h, int64_t slot, const T* value) const {
        if (!is_int8) return put_value(head<T>(block, h), slot, value);
        int8_t* codes = codes_of(value_dim);
        value_scales(block, h)[slot] = quantise_row(value, value_dim, codes);
        if (slot % kPairs + 1 < kPairs) value_scales(block, h)[slot + 1] = 0;
        put_value(head<int8_t>(block, h), slot, codes);
    }

    // Zero the values behind a slot that a product takes together with it.
    void clear_behind(int64_t block, int64_t h, int64_t slot) const {
        const int64_t end = std::min(slots, round_up(slot + 1, kTokens));
        if (!is_int8) return clear(head<T>(block, h), slot, end);
        clear(head<int8_t>(block, h), slot, end);
        // Nothing times NaN is NaN.
        std::fill(value_scales(block, h) + slot + 1, value_scales(block, h) + end, 0.0f);
    }

    // The block's first `tokens` tokens; `room` has head_elements, for what isn't plain.
    OpenBlock<T> open(int64_t block, int64_t h, int64_t tokens, T* room) const {
        const int64_t keys = key_panels * key_stride();
        if (!is_int8) return {head<T>(block, h), head<T>(block, h) + keys};
        open_keys(head<int8_t>(block, h), key_scales(block, h), tokens, room);
        open_values(head<int8_t>(block, h) + keys, value_scales(block, h), tokens, room + keys);
        return {room, room + keys};
    }

    // What a read of the block's first `tokens` tokens touches.
    Ahead ahead(int64_t block, int64_t h, int64_t tokens) const {
        if (is_int8) return Ahead(head<int8_t>(block, h), head_bytes() / 64);
        constexpr int64_t kLine = 64 / sizeof(T);
        const T* keys = head<T>(block, h);
        Ahead lines(keys, round_up(tokens, kPanel) * key_dim / kLine);
        lines.then(keys + key_panels * key_stride(), (tokens * kPanel + kLine - 1) / kLine,
                   value_stride() * sizeof(T), value_panels);
        return lines;
    }

    char* base;
    bool is_int8;
    int64_t heads, key_dim, value_dim, slots, key_panels, value_panels;

   private:
    template <typename E>
    E* head(int64_t block, int64_t h) const {
        return reinterpret_cast<E*>(base + (block * heads + h) * head_bytes());
    }
    float* key_scales(int64_t block, int64_t h) const {
        return reinterpret_cast<float*>(head<char>(block, h) + round_up(head_elements(), 64));
    }
    float* value_scales(int64_t block, int64_t h) const {
        return key_scales(block, h) + key_panels * kPanel;
    }

    // Room for the codes of one token, of the calling thread.
    static int8_t* codes_of(int64_t elements) {
        thread_local std::vector<int8_t> codes;
        if (static_cast<int64_t>(codes.size()) < elements) codes.resize(elements);
        return codes.data();
    }

    template <typename E>
    void put_key(E* keys, int64_t slot, const E* key) const {
        E* panel = keys + slot / kPanel * key_stride() + slot % kPanel * kPairs;
        for (int64_t i = 0; i < key_dim; i += kPairs) {
            std::memcpy(panel + i * kPanel, key + i, kPairs * sizeof(E));
        }
    }

    template <typename E>
    void put_value(E* keys, int64_t slot, const E* value) const {
        E* pair = keys + key_panels * key_stride() + slot / kPairs * kPanel * kPairs + slot % kPairs;
        for (int64_t p = 0; p < value_panels; ++p, pair += value_stride()) {
            const int64_t count = std::min<int64_t>(kPanel, value_dim - p * kPanel);
            for (int64_t i = 0; i < count; ++i) {
                pair[i * kPairs] = value[p * kPanel + i];
                if (slot % kPairs + 1 < kPairs) pair[i * kPairs + 1] = E{};
            }
        }
    }

    template <typename E>
    void clear(E* keys, int64_t slot, int64_t end) const {
        E* panel = keys + key_panels * key_stride();
        for (int64_t p = 0; p < value_panels; ++p, panel += value_stride()) {
            E* pair = panel + slot / kPairs * kPanel * kPairs;
            // The other half of the slot's own pair, then whole pairs.
            for (int64_t i = slot % kPairs + 1; i < kPairs; ++i) {
                for (int64_t lane = 0; lane < kPanel; ++lane) pair[lane * kPairs + i] = E{};
            }
            const int64_t next = slot / kPairs * kPairs + kPairs;
            if (next < end) std::memset(panel + next * kPanel, 0, (end - next) * kPanel * sizeof(E));
        }
    }

    // Panels of int8 made plain: a line holds one or two elements of 16 tokens.
    void open_keys(const int8_t* codes, const float* scales, int64_t tokens, T* out) const {
        for (int64_t p = 0; p * kPanel < tokens; ++p, scales += kPanel) {
            alignas(64) float in_turn[kPairs * kPanel];
            for (int64_t i = 0; i < kPairs * kPanel; ++i) in_turn[i] = scales[i / kPairs];
            for (int64_t part = 0; part < kPairs; ++part) {
                const Vec scale = load(in_turn + part * kLanes);
                for (int64_t i = part * kLanes; i < key_stride(); i += kPairs * kPanel) {
                    store(out + p * key_stride() + i, load(codes + p * key_stride() + i) * scale);
                }
            }
        }
    }

    // The same where a line holds 16 elements of one or two tokens.
    void open_values(const int8_t* codes, const float* scales, int64_t tokens, T* out) const {
        const int64_t end = std::min(slots, round_up(tokens, kTokens));
        for (int64_t token = 0; token < end; token += kPairs) {
            const Vec scale = kPairs == 2 ? splat_pair(scales + token) : splat(scales[token]);
            for (int64_t p = 0; p < value_panels; ++p) {
                const int64_t line = p * value_stride() + token * kPanel;
                for (int64_t i = line; i < line + kPairs * kPanel; i += kLanes) {
                    store(out + i, load(codes + i) * scale);
                }
            }
        }
    }
};
