// The KV pool of one layer: for each block and head the keys and values as panels (tiles.h), so that
// attention is two products. Keys: a panel holds 16 tokens, its inner dimension is the key's. Values:
// a panel holds 16 elements of the value, its inner dimension is the tokens.
#pragma once

#include "attention.h"
#include "tiles.h"

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

template <typename T>
struct KvPool {
    static constexpr int64_t kPairs = sizeof(T) == 2 ? 2 : 1;

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

    // A product reads tokens in pairs: behind the sequence's last token the neighbour is zeroed, for
    // it may hold another sequence's NaN, which no weight of 0 removes.
    void write_value(int64_t block, int64_t h, int64_t slot, const T* value, bool is_last) const {
        T* pair = values(block, h) + slot / kPairs * kPanel * kPairs + slot % kPairs;
        const bool clears = is_last && kPairs == 2 && slot % 2 == 0;
        for (int64_t p = 0; p < value_panels; ++p, pair += value_stride()) {
            const int64_t count = std::min<int64_t>(kPanel, value_dim - p * kPanel);
            for (int64_t i = 0; i < count; ++i) {
                pair[i * kPairs] = value[p * kPanel + i];
                if (clears) pair[i * kPairs + 1] = T{};
            }
        }
    }

    T* base;
    int64_t heads, key_dim, value_dim, slots, key_panels, value_panels;
};
