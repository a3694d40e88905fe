// Many queries over the same keys, as two matrix products: queries times keys, weights times values.
#pragma once

#include "attention_layer.h"
#include "attention_tiles.h"

constexpr int64_t kDenseRows = 96;  // queries times heads that share a pass over the keys
constexpr int64_t kSquareRows = 32;  // of them at once
constexpr int64_t kChunk = 256;      // keys whose scores are held at once
constexpr int64_t kScores = kChunk + 2 * kLanes;  // a row of them; a pair may reach one key further

template <typename T>
struct DenseScratch {
    Buffer<T> queries, weights, opened;
    Buffer<OpenBlock<T>> blocks;
    Buffer<float> scores, products, sums, merged;
};

// Where a row comes from.
struct DenseRow {
    int32_t token, query_head, position, slot;
};

template <typename T>
class Dense {
   public:
    Dense(const Layer<T>& layer, DenseScratch<T>& scratch)
        : layer_(layer),
          pool_(layer.pool),
          queries_(scratch.queries.reserve(kDenseRows * layer.query_stride)),
          weights_(scratch.weights.reserve(kSquareRows * kScores)),
          scores_(scratch.scores.reserve(kSquareRows * kScores)),
          products_(scratch.products.reserve(kSquareRows * kTileColumns)),
          num_blocks_(kChunk / layer.batch.block_size + 2),
          opened_(pool_.is_int8 ? scratch.opened.reserve(num_blocks_ * pool_.head_elements())
                                : nullptr),
          blocks_(scratch.blocks.reserve(num_blocks_)),
          merged_(scratch.merged.reserve(part_floats(layer.shape))),
          sum_groups_((pool_.value_panels + kTilePanels - 1) / kTilePanels),
          sums_{scratch.sums.reserve(sum_groups_ * kDenseRows * kTileColumns), kDenseRows} {}

    void attend(const Item& item, int64_t head) {
        if (item.writes) layer_.write(item, head, true, queries_);
        const int64_t total = item.count * layer_.group;
        for (int64_t first = 0; first < total; first += kDenseRows) {
            num_rows_ = std::min(kDenseRows, total - first);
            for (int64_t r = 0; r < num_rows_; ++r) rows_[r] = row_of(item, head, first + r);
            attend_rows(layer_.table(item.sequence), head, item.start, item.end);
        }
        if (item.first_member < 0) {
            if (item.slot >= 0) layer_.arrive(item.sequence, item.count, head, merged_);
            return;
        }
        for (int64_t i = 0; i < item.count; ++i) {
            const Member& member = layer_.plan.members[item.first_member + i];
            layer_.arrive(member.sequence, 1, head, merged_);
        }
    }

   private:
    // One head after the other, so that 32 queries of one fill the tiles.
    DenseRow row_of(const Item& item, int64_t head, int64_t r) const {
        const int32_t query = static_cast<int32_t>(r % item.count);
        const int32_t query_head = static_cast<int32_t>(head * layer_.group + r / item.count);
        if (item.first_member < 0) {
            const int32_t slot = item.slot < 0 ? -1 : item.slot + query;
            return {item.token + query, query_head, item.position + query, slot};
        }
        const Member& member = layer_.plan.members[item.first_member + query];
        return {member.token, query_head, member.position, member.slot};
    }

    void attend_rows(const int32_t* table, int64_t head, int64_t start, int64_t end) {
        int64_t first = end;
        for (int64_t r = 0; r < num_rows_; ++r) {
            const DenseRow& row = rows_[r];
            layer_.load_query(row.token, row.query_head, queries_ + r * layer_.query_stride);
            states_[r].reset();
            for (int64_t g = 0; g < sum_groups_; ++g) {
                std::memset(sums_.at(r, g * kTileColumns), 0, kTileColumns * sizeof(float));
            }
            first = std::min(first, layer_.first_seen(row.position));
        }
        table_ = table;
        head_ = head;
        const int64_t block_size = layer_.batch.block_size;
        const int64_t step = std::max(kChunk / block_size, int64_t{1}) * block_size;
        // What lies before `start` belongs to another piece; what no row sees is only hidden.
        const int64_t begin = std::max(start, first / block_size * block_size);
        for (int64_t chunk = begin; chunk < end; chunk += step) {
            // Blocks larger than the scores' buffer are taken in parts of whole panels.
            const int64_t stop = std::min(end, chunk + step);
            open(chunk, stop);
            for (int64_t part = chunk; part < stop; part += kChunk) {
                for (int64_t r = 0; r < num_rows_; r += kSquareRows) {
                    attend_square(r, part, std::min(stop, part + kChunk));
                }
            }
        }
        for (int64_t r = 0; r < num_rows_; ++r) {
            const DenseRow& row = rows_[r];
            layer_.finish(row.token, row.query_head, row.slot, states_[r], sums_, r);
        }
    }

    // Make the blocks of keys start .. end ready.
    void open(int64_t start, int64_t end) {
        const int64_t block_size = layer_.batch.block_size;
        first_block_ = start / block_size;
        for (int64_t i = 0; (first_block_ + i) * block_size < end; ++i) {
            const int64_t tokens = std::min(block_size, end - (first_block_ + i) * block_size);
            T* room = opened_ == nullptr ? nullptr : opened_ + i * pool_.head_elements();
            blocks_[i] = pool_.open(table_[first_block_ + i], head_, tokens, room);
        }
    }

    // Rows `first` .. of a square over keys start .. end.
    void attend_square(int64_t first, int64_t start, int64_t end) {
        const int64_t count = std::min(kSquareRows, num_rows_ - first);
        int64_t last = 0;
        for (int64_t r = first; r < first + count; ++r) {
            last = std::max<int64_t>(last, rows_[r].position);
        }
        end = std::min(end, last + 1);
        if (end <= start) return;
        const bool in_tiles = score_in_tiles(first, count, start, end);
        if (!in_tiles) score(first, count, start, end);
        const int64_t padded = round_up(end - start + (in_tiles ? 0 : 1), 32);
        for (int64_t r = 0; r < count; ++r) {
            const int64_t position = rows_[first + r].position;
            float* scores = scores_ + r * kScores;
            hide_and_cap(layer_.shape, scores, layer_.first_seen(position) - start,
                         std::min(position + 1, end) - start, padded);
            const float factor =
                weigh(layer_.shape, scores, weights_ + r * kScores, padded, states_[first + r]);
            if (factor != 1.0f) sums_.scale(first + r, sum_groups_, factor);
        }
        if (in_tiles) {
            add_values_in_tiles(first, count, start, end);
        } else {
            add_values(first, count, start, end);
        }
    }

    // scores[row][key - start]
    void score(int64_t first, int64_t count, int64_t start, int64_t end) {
        for (int64_t key = start; key < end;) {
            const int64_t slot = key % layer_.batch.block_size;
            const int64_t stop =
                std::min({end, key + kTileColumns, key - slot + layer_.batch.block_size});
            const Panels<T> panels = {keys_at(key), pool_.key_stride(),
                                      (stop - key + kPanel - 1) / kPanel};
            multiply_rows(count, queries_ + first * layer_.query_stride, layer_.query_stride,
                          panels, pool_.key_dim, products_);
            for (int64_t r = 0; r < count; ++r) {
                std::memcpy(scores_ + r * kScores + key - start, products_ + r * kTileColumns,
                            (stop - key) * sizeof(float));
            }
            key = stop;
        }
    }

    // sums[row] += weights of the keys times their values
    void add_values(int64_t first, int64_t count, int64_t start, int64_t end) {
        for (int64_t key = start; key < end;) {
            const int64_t slot = key % layer_.batch.block_size;
            const int64_t stop = std::min(end, key - slot + layer_.batch.block_size);
            const int64_t tokens = round_up(stop - key, KvPool<T>::kPairs);
            for (int64_t p = 0; p < pool_.value_panels; p += kTilePanels) {
                const Panels<T> panels = {values_at(key) + p * pool_.value_stride(),
                                          pool_.value_stride(),
                                          std::min<int64_t>(kTilePanels, pool_.value_panels - p)};
                multiply_rows(count, weights_ + key - start, kScores, panels, tokens,
                              sums_.at(first, p * kPanel), true);
            }
            key = stop;
        }
    }

    // The same in tile registers; false where there are none or the pool's shape doesn't fill them.
    bool score_in_tiles(int64_t first, int64_t count, int64_t start, int64_t end) {
#if defined(TM_HAS_AMX)
        if constexpr (sizeof(T) == 2) {
            if (!fills_tiles<T>(pool_, layer_.batch.block_size)) return false;
            for (int64_t key = start; key < end; key += 32) {
                const Square square = {queries_ + first * layer_.query_stride, layer_.query_stride,
                                       pool_.key_dim / 32, scores_ + key - start, kScores,
                                       false, count > 16, true};
                const T* keys = keys_at(key);
                multiply_square(square, pool_.key_stride(),
                                [&](int64_t i) { return keys + i * 32 * kPanel; });
            }
            return true;
        }
#endif
        return false;
    }

    void add_values_in_tiles(int64_t first, int64_t count, int64_t start, int64_t end) {
#if defined(TM_HAS_AMX)
        if constexpr (sizeof(T) == 2) {
            const T* values[kChunk / 32];
            for (int64_t key = start; key < end; key += 32) {
                values[(key - start) / 32] = values_at(key);
            }
            for (int64_t p = 0; p < pool_.value_panels; p += 2) {
                const Square square = {weights_, kScores, (end - start + 31) / 32,
                                       sums_.at(first, p * kPanel), kTileColumns,
                                       true, count > 16, p + 1 < pool_.value_panels};
                multiply_square(square, pool_.value_stride(), [&](int64_t i) {
                    return values[i] + p * pool_.value_stride();
                });
            }
        }
#endif
    }

    const T* keys_at(int64_t key) const {
        const int64_t block_size = layer_.batch.block_size, slot = key % block_size;
        return blocks_[key / block_size - first_block_].keys + slot / kPanel * pool_.key_stride();
    }

    const T* values_at(int64_t key) const {
        const int64_t block_size = layer_.batch.block_size;
        return blocks_[key / block_size - first_block_].values + key % block_size * kPanel;
    }

    const Layer<T>& layer_;
    const KvPool<T>& pool_;
    T* const queries_;
    T* const weights_;
    float* const scores_;
    float* const products_;
    const int64_t num_blocks_;
    T* const opened_;
    OpenBlock<T>* const blocks_;
    float* const merged_;
    const int64_t sum_groups_;
    const RowSums sums_;
    const int32_t* table_ = nullptr;
    int64_t head_ = 0, num_rows_ = 0, first_block_ = 0;
    DenseRow rows_[kDenseRows];
    RowState states_[kDenseRows];
};
