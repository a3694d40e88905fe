// Single queries, or few of one sequence. A block is read once, as fast as memory gives it: while one
// is multiplied the next is on its way, for tables scatter blocks where no prefetcher of the processor
// finds them. A sequence's queries follow each other over each block, and sum what each would alone.
#pragma once

#include "attention_layer.h"
#include "attention_tiles.h"

// Query heads over one head of keys that this path takes: their sums stay in registers.
constexpr int64_t kDecodeGroup = kTileRows;
constexpr int64_t kDecodeRows = kFewQueries * kDecodeGroup;
constexpr int64_t kSquare = 32;  // rows and keys of a square of tiles
constexpr int kDecodePanels = 2;                          // panels of keys taken at once
constexpr int64_t kDecodeKeys = kDecodePanels * kPanel;

inline Vec multiply_line(Vec sum, const bf16* row, Line line) { return multiply_pair(sum, row, line); }
inline Vec multiply_line(Vec sum, const float* row, Vec line) { return fma(splat(*row), line, sum); }
inline Vec load_line(const float* p) { return load(p); }

template <typename T>
struct DecodeScratch {
    Buffer<T> queries, weights, opened;
    Buffer<float> scores, sums, merged;
};

template <typename T>
class Decode {
   public:
    Decode(const Layer<T>& layer, DecodeScratch<T>& scratch)
        : layer_(layer),
          pool_(layer.pool),
          in_tiles_(fills_tiles<T>(layer.pool, layer.batch.block_size)),
          // Squares of tiles read rows that nobody uses.
          queries_(scratch.queries.reserve((kDecodeRows + kSquare) * layer.query_stride)),
          weights_(scratch.weights.reserve(kSquare * kDecodeKeys)),
          scores_(scratch.scores.reserve(kSquare * kSquare)),
          opened_(pool_.is_int8 ? scratch.opened.reserve(pool_.head_elements()) : nullptr),
          merged_(scratch.merged.reserve(part_floats(layer.shape))),
          sum_groups_((pool_.value_panels + kTilePanels - 1) / kTilePanels),
          sums_{scratch.sums.reserve(sum_groups_ * (kDecodeRows + kSquare) * kTileColumns),
                kDecodeRows + kSquare} {}

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
    // Lines of the next block that are asked for with each step of a product and with each row.
    static constexpr int kLinesPerStep = 16, kLinesPerRow = 12;

    // The first `tokens` tokens of a block, of which a query sees those from `from` on.
    struct Seen {
        int64_t query, tokens, from;
    };

    template <int R>
    void attend_group(const Item& item, int64_t head, const Item* next, int64_t next_head) {
        if (item.writes) layer_.write(item, head, in_tiles_, queries_);
        for (int64_t row = 0; row < item.count * R; ++row) {
            layer_.load_query(item.token + row / R, head * R + row % R,
                              queries_ + row * layer_.query_stride);
            states_[row].reset();
            for (int64_t g = 0; g < sum_groups_; ++g) {
                std::memset(sums_.at(row, g * kTileColumns), 0, kTileColumns * sizeof(float));
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
            const int64_t tokens = std::min(block_size, item.end - start);
            block_ = pool_.open(layer_.table(item.sequence)[start / block_size], head, tokens,
                                opened_);
            if (in_tiles_) {
                attend_in_tiles<R>(item, start, tokens, ahead);
            } else {
                for (int64_t query = 0; query < item.count; ++query) {
                    attend_block<R>(seen_by(item, query, start, tokens), ahead);
                }
            }
            ahead.ask_rest();
        }
        for (int64_t row = 0; row < item.count * R; ++row) {
            const int32_t query = static_cast<int32_t>(row / R);
            layer_.finish(item.token + query, head * R + row % R,
                          item.slot < 0 ? -1 : item.slot + query, states_[row], sums_, row);
        }
        if (item.slot >= 0) layer_.arrive(item.sequence, item.count, head, merged_);
    }

    Seen seen_by(const Item& item, int64_t query, int64_t start, int64_t tokens) const {
        const int64_t position = item.position + query;
        return {query, std::min(tokens, position + 1 - start),
                std::max<int64_t>(layer_.first_seen(position) - start, 0)};
    }

    // The first key of the block with the first key that an item's first query sees.
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
                float* sums = sums_.at(seen.query * R, p * kPanel);
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
    }

    // A block and all rows of an item, a square of 32 keys and 32 rows at a time. A product of tiles
    // takes as long with three rows as with sixteen, so that further queries cost little.
    template <int R>
    void attend_in_tiles(const Item& item, int64_t start, int64_t tokens, Ahead& ahead_at) {
#if defined(TM_HAS_AMX)
        if constexpr (sizeof(T) == 2) {
            const int64_t first = seen_by(item, 0, start, tokens).from, rows = item.count * R;
            Ahead ahead = ahead_at;
            for (int64_t slot = first / kSquare * kSquare; slot < tokens; slot += kSquare) {
                for (int64_t row = 0; row < rows; row += kSquare) {
                    const int64_t count = std::min(kSquare, rows - row);
                    const T* keys = block_.keys + slot / kPanel * pool_.key_stride();
                    const Square scored = {queries_ + row * layer_.query_stride,
                                           layer_.query_stride, pool_.key_dim / 32, scores_,
                                           kSquare, false, count > 16, tokens - slot > kPanel};
                    multiply_square(scored, pool_.key_stride(), [&](int64_t i) {
                        ahead.ask_some(kLinesPerStep);
                        return keys + i * 32 * kPanel;
                    });
                    for (int64_t r = 0; r < count; ++r) {
                        const Seen seen = seen_by(item, (row + r) / R, start, tokens);
                        weigh_in_square(seen, slot, r, row + r);
                        ahead.ask_some(kLinesPerRow);
                    }
                    for (int64_t p = 0; p < pool_.value_panels; p += 2) {
                        const T* values = block_.values + slot * kPanel + p * pool_.value_stride();
                        const Square summed = {weights_, kDecodeKeys, 1, sums_.at(row, p * kPanel),
                                               kTileColumns, true, count > 16,
                                               p + 1 < pool_.value_panels};
                        multiply_square(summed, pool_.value_stride(), [&](int64_t) {
                            ahead.ask_some(kLinesPerStep);
                            return values;
                        });
                    }
                }
            }
            ahead_at = ahead;
        }
#endif
    }

    // Scores of one row of a square become weights; what the row summed before is scaled.
    void weigh_in_square(const Seen& seen, int64_t slot, int64_t r, int64_t row) {
        float* scores = scores_ + r * kSquare;
        const bool sees_all = seen.from <= slot && seen.tokens >= slot + kSquare;
        if (!sees_all || layer_.shape.softcap > 0) {
            hide_and_cap(layer_.shape, scores, seen.from - slot, seen.tokens - slot, kSquare);
        }
        const Vec some[2] = {load(scores), load(scores + kPanel)};
        const float factor =
            weigh<2>(layer_.shape, some, weights_ + r * kDecodeKeys, states_[row]);
        if (factor != 1.0f) sums_.scale(row, sum_groups_, factor);
    }

    // Weights of the keys from `slot` on, C panels of them; factors for what was summed before.
    template <int R, int C>
    void score(const Seen& seen, int64_t slot, Ahead& ahead_at, float (&factors)[R]) {
        const T* keys = block_.keys + slot / kPanel * pool_.key_stride();
        const T* queries = queries_ + seen.query * R * layer_.query_stride;
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
                    const T* query = queries + r * layer_.query_stride + i;
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
            factors[r] = weigh<C>(layer_.shape, scores[r], weights_ + r * kDecodeKeys,
                                  states_[seen.query * R + r]);
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
    const bool in_tiles_;
    T* const queries_;
    T* const weights_;
    float* const scores_;
    T* const opened_;
    OpenBlock<T> block_ = {};
    float* const merged_;
    const int64_t sum_groups_;
    const RowSums sums_;
    RowState states_[kDecodeRows + kSquare];
};
