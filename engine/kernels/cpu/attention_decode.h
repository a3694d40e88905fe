// Single queries. A block is read once, as fast as memory gives it: while one is multiplied the next
// is on its way, for tables scatter blocks where no prefetcher of the processor finds them.
#pragma once

#include "attention_layer.h"

// Query heads over one head of keys that this path takes: their sums stay in registers.
constexpr int64_t kDecodeGroup = kTileRows;
constexpr int kDecodePanels = 2;                          // panels of keys taken at once
constexpr int64_t kDecodeKeys = kDecodePanels * kPanel;

inline Vec multiply_line(Vec sum, const bf16* row, Line line) { return multiply_pair(sum, row, line); }
inline Vec multiply_line(Vec sum, const float* row, Vec line) { return fma(splat(*row), line, sum); }
inline Vec load_line(const float* p) { return load(p); }

template <typename T>
struct DecodeScratch {
    Buffer<T> queries, weights, opened;
    Buffer<float> sums, merged;
};

template <typename T>
class Decode {
   public:
    Decode(const Layer<T>& layer, DecodeScratch<T>& scratch)
        : layer_(layer),
          pool_(layer.pool),
          queries_(scratch.queries.reserve(kDecodeGroup * layer.query_stride)),
          weights_(scratch.weights.reserve(kDecodeGroup * kDecodeKeys)),
          opened_(pool_.is_int8 ? scratch.opened.reserve(pool_.head_elements()) : nullptr),
          merged_(scratch.merged.reserve(part_floats(layer.shape))),
          sum_groups_((pool_.value_panels + kTilePanels - 1) / kTilePanels),
          sums_{scratch.sums.reserve(sum_groups_ * kDecodeGroup * kTileColumns), kDecodeGroup} {}

    // `next` is the piece that this thread takes behind this one, or null.
    void attend(const Item& item, int64_t head, const Item* next, int64_t next_head) {
        switch (layer_.group) {
            case 1: return attend_group<1>(item, head, next, next_head);
            case 2: return attend_group<2>(item, head, next, next_head);
            case 3: return attend_group<3>(item, head, next, next_head);
#if defined(__AVX512F__)
            case 4: return attend_group<4>(item, head, next, next_head);
            case 5: return attend_group<5>(item, head, next, next_head);
            case 6: return attend_group<6>(item, head, next, next_head);
#endif
        }
    }

   private:
    // The first `tokens` tokens of a block, of which those from `from` on are seen.
    struct Seen {
        int64_t block, head, tokens, from;
    };

    template <int R>
    void attend_group(const Item& item, int64_t head, const Item* next, int64_t next_head) {
        if (item.writes) layer_.write(item, head, queries_);
        for (int64_t r = 0; r < R; ++r) {
            layer_.load_query(item.token, head * R + r, queries_ + r * layer_.query_stride);
            states_[r].reset();
            for (int64_t g = 0; g < sum_groups_; ++g) {
                std::memset(sums_.at(r, g * kTileColumns), 0, kTileColumns * sizeof(float));
            }
        }
        const int64_t block_size = layer_.batch.block_size;
        for (int64_t start = first_block(item); start < item.end; start += block_size) {
            Ahead ahead;
            if (start + block_size < item.end) {
                ahead = reading(item, head, start + block_size);
            } else if (next != nullptr) {
                ahead = reading(*next, next_head, first_block(*next));
            }
            attend_block<R>({layer_.table(item.sequence)[start / block_size], head,
                             std::min(block_size, item.end - start),
                             std::max<int64_t>(layer_.first_seen(item.position) - start, 0)},
                            ahead);
        }
        for (int64_t r = 0; r < R; ++r) {
            layer_.finish(item.token, head * R + r, item.slot, states_[r], sums_, r);
        }
        if (item.slot >= 0) layer_.arrive(item.sequence, item.token, head, merged_);
    }

    // The first key of the block with the first key that an item sees.
    int64_t first_block(const Item& item) const {
        const int64_t seen = std::max<int64_t>(item.start, layer_.first_seen(item.position));
        return seen / layer_.batch.block_size * layer_.batch.block_size;
    }

    Ahead reading(const Item& item, int64_t head, int64_t start) const {
        const int64_t block_size = layer_.batch.block_size;
        if (start >= item.end) return Ahead();
        return pool_.ahead(layer_.table(item.sequence)[start / block_size], head,
                           std::min(block_size, item.end - start));
    }

    template <int R>
    void attend_block(const Seen& seen, Ahead& ahead) {
        block_ = pool_.open(seen.block, seen.head, seen.tokens, opened_);
        for (int64_t slot = seen.from / kDecodeKeys * kDecodeKeys; slot < seen.tokens;
             slot += kDecodeKeys) {
            float factors[R];
            if (seen.tokens - slot > kPanel) {
                score<R, kDecodePanels>(seen, slot, ahead, factors);
            } else {
                score<R, 1>(seen, slot, ahead, factors);
            }
            const int64_t tokens = std::min(kDecodeKeys, seen.tokens - slot);
            const T* values = block_.values + slot * kPanel;
            for (int64_t p = 0; p < pool_.value_panels; p += kTilePanels) {
                const T* panel = values + p * pool_.value_stride();
                float* sums = sums_.at(0, p * kPanel);
                switch (std::min<int64_t>(kTilePanels, pool_.value_panels - p)) {
                    case 1: add_values<R, 1>(panel, tokens, sums, factors, ahead); break;
                    case 2: add_values<R, 2>(panel, tokens, sums, factors, ahead); break;
                    case 3:
                        add_values<R, kTilePanels - 1>(panel, tokens, sums, factors, ahead);
                        break;
                    default: add_values<R, kTilePanels>(panel, tokens, sums, factors, ahead);
                }
            }
        }
        ahead.ask_rest();
    }

    // Weights of the keys from `slot` on, C panels of them; factors for what was summed before.
    template <int R, int C>
    void score(const Seen& seen, int64_t slot, Ahead& ahead_at, float (&factors)[R]) {
        const T* keys = block_.keys + slot / kPanel * pool_.key_stride();
        const int64_t stride = pool_.key_stride(), inputs = pool_.key_dim;
        Ahead ahead = ahead_at;
        Vec scores[R][C];
        for (int r = 0; r < R; ++r) {
            for (int c = 0; c < C; ++c) scores[r][c] = zero();
        }
        for (int64_t i = 0; i < inputs; i += KvPool<T>::kPairs) {
            decltype(load_line(keys)) line[C];
            for (int c = 0; c < C; ++c) line[c] = load_line(keys + c * stride + i * kPanel);
            // Three lines here and two below are a block's worth when keys and values are as wide.
            ahead.ask();
            ahead.ask();
            ahead.ask();
            for (int r = 0; r < R; ++r) {
                for (int c = 0; c < C; ++c) {
                    const T* query = queries_ + r * layer_.query_stride + i;
                    scores[r][c] = multiply_line(scores[r][c], query, line[c]);
                }
            }
        }
        ahead_at = ahead;
        const bool sees_all = seen.from <= slot && seen.tokens >= slot + C * kPanel;
        for (int r = 0; r < R; ++r) {
            if (!sees_all || layer_.shape.softcap > 0) {
                alignas(64) float some[C * kPanel];
                for (int c = 0; c < C; ++c) store(some + c * kPanel, scores[r][c]);
                hide_and_cap(layer_.shape, some, seen.from - slot, seen.tokens - slot, C * kPanel);
                for (int c = 0; c < C; ++c) scores[r][c] = load(some + c * kPanel);
            }
            factors[r] = weigh<C>(layer_.shape, scores[r], weights_ + r * kDecodeKeys, states_[r]);
        }
    }

    // sums = sums * factors + weights times the values of some tokens, C panels of them
    template <int R, int C>
    void add_values(const T* values, int64_t tokens, float* sums, const float (&factors)[R],
                    Ahead& ahead_at) {
        const int64_t stride = pool_.value_stride();
        Ahead ahead = ahead_at;
        Vec sum[R][C];
        for (int r = 0; r < R; ++r) {
            for (int c = 0; c < C; ++c) {
                sum[r][c] = load(sums + r * kTileColumns + c * kPanel) * splat(factors[r]);
            }
        }
        for (int64_t i = 0; i < tokens; i += KvPool<T>::kPairs) {
            decltype(load_line(values)) line[C];
            for (int c = 0; c < C; ++c) line[c] = load_line(values + c * stride + i * kPanel);
            ahead.ask();
            ahead.ask();
            for (int r = 0; r < R; ++r) {
                for (int c = 0; c < C; ++c) {
                    sum[r][c] = multiply_line(sum[r][c], weights_ + r * kDecodeKeys + i, line[c]);
                }
            }
        }
        ahead_at = ahead;
        for (int r = 0; r < R; ++r) {
            for (int c = 0; c < C; ++c) store(sums + r * kTileColumns + c * kPanel, sum[r][c]);
        }
    }

    const Layer<T>& layer_;
    const KvPool<T>& pool_;
    T* const queries_;
    T* const weights_;
    T* const opened_;
    OpenBlock<T> block_ = {};
    float* const merged_;
    const int64_t sum_groups_;
    const RowSums sums_;
    RowState states_[kDecodeGroup];
};
