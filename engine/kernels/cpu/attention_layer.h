// One layer as a piece of work sees it: rows rotated and stored on the way in, sums scaled or left in
// slots on the way out.
#pragma once

#include <new>

#include "attention_plan.h"
#include "kv_pool.h"
#include "softmax.h"

// Memory of a thread, on cache lines, that only grows.
template <typename T>
class Buffer {
   public:
    T* reserve(int64_t elements) {
        if (elements > size_) {
            memory_.reset(new (std::align_val_t(64)) T[elements]());
            size_ = elements;
        }
        return memory_.get();
    }

   private:
    struct Free {
        void operator()(T* memory) const { operator delete[](memory, std::align_val_t(64)); }
    };
    std::unique_ptr<T[], Free> memory_;
    int64_t size_ = 0;
};

// The sums of some rows: [panels / kTilePanels][rows][kTileColumns], as products give them.
struct RowSums {
    float* base;
    int64_t rows;

    float* at(int64_t row, int64_t column) const {
        return base + (column / kTileColumns * rows + row) * kTileColumns + column % kTileColumns;
    }
    // One row's sums of so many groups of panels, times a factor.
    void scale(int64_t row, int64_t groups, float factor) const {
        for (int64_t g = 0; g < groups; ++g) {
            float* sums = at(row, g * kTileColumns);
            for (int64_t i = 0; i < kTileColumns; i += kLanes) {
                store(sums + i, load(sums + i) * splat(factor));
            }
        }
    }
};

template <typename T>
class Layer {
   public:
    Layer(const TmAttentionPlan& plan, const TmAttentionShape& shape, const TmAttentionRows& rows,
          void* pool)
        : plan(plan),
          batch(*plan.batch),
          shape(shape),
          pool(shape, plan.batch->block_size, pool),
          group(shape.num_heads / shape.num_kv_heads),
          query_stride(round_up(shape.key_dim, 32)),
          rows_(rows) {}

    const int32_t* table(int32_t sequence) const {
        return batch.block_tables + sequence * batch.table_stride;
    }

    // The first key that a query at a position sees.
    int64_t first_seen(int64_t position) const {
        return shape.window > 0 ? std::max(position + 1 - shape.window, int64_t{0}) : 0;
    }

    // Store the keys and values of an item's tokens that are among its keys; `row` has room for
    // query_stride elements. What the tile registers take with the sequence's last one is cleared if
    // they will be used.
    void write(const Item& item, int64_t head, bool for_tiles, T* row) const {
        const int64_t last = batch.context_lens[item.sequence] - 1;
        const int64_t first = std::max(item.start - item.position, 0);
        const int64_t end = std::min(item.end - item.position, item.count);
        for (int64_t i = first; i < end; ++i) {
            const int64_t position = item.position + i, token = item.token + i;
            const int64_t block = table(item.sequence)[position / batch.block_size];
            const int64_t slot = position % batch.block_size;
            const T* key = static_cast<const T*>(rows_.key) + token * rows_.key_stride;
            const T* value = static_cast<const T*>(rows_.value) + token * rows_.value_stride;
            rotate(key + head * shape.key_dim, token, row);
            pool.write_key(block, head, slot, row);
            pool.write_value(block, head, slot, value + head * shape.value_dim);
            const bool is_last = position == last || slot == batch.block_size - 1;
            if (for_tiles && is_last) pool.clear_behind(block, head, slot);
        }
    }

    // out [query_stride] = a token's query of one head, rotated
    void load_query(int64_t token, int64_t query_head, T* out) const {
        const T* query = static_cast<const T*>(rows_.query) + token * rows_.query_stride;
        rotate(query + query_head * shape.key_dim, token, out);
        for (int64_t i = shape.key_dim; i < query_stride; ++i) out[i] = T{};
    }

    // Give away a row's sums: finished to `out`, or to a slot.
    void finish(int64_t token, int64_t query_head, int32_t slot, const RowState& state,
                const RowSums& sums, int64_t row) const {
        if (slot < 0) {
            write_out(token, query_head, state.top, state.total(),
                      [&](int64_t column) { return sums.at(row, column); });
            return;
        }
        float* part = part_of(slot, query_head);
        const int64_t padded = part_floats(shape) - kLanes;
        for (int64_t d = 0; d < padded; d += kLanes) store(part + d, load(sums.at(row, d)));
        part[padded] = state.total();
        part[padded + 1] = state.top;
    }

    // Sums of so many queries' parts are in their slots; whoever brings a sequence's last ones merges
    // all.
    void arrive(int32_t sequence, int32_t queries, int64_t head, float* merged) const {
        const Parts& parts = plan.parts[sequence];
        std::atomic<int32_t>& arrived = plan.arrived[sequence * shape.num_kv_heads + head];
        const int32_t before = arrived.fetch_add(queries, std::memory_order_acq_rel);
        if (before + queries < parts.count * parts.queries) return;
        arrived.store(0, std::memory_order_relaxed);
        for (int32_t query = 0; query < parts.queries; ++query) {
            for (int64_t g = 0; g < group; ++g) merge(parts, query, head * group + g, merged);
        }
    }

   private:
    float* part_of(int64_t slot, int64_t query_head) const {
        return plan.sums.data() + (slot * shape.num_heads + query_head) * part_floats(shape);
    }

    void merge(const Parts& parts, int32_t query, int64_t query_head, float* merged) const {
        const int64_t padded = part_floats(shape) - kLanes;
        const auto part_at = [&](int32_t i) {
            return part_of(parts.first_slot + i * parts.queries + query, query_head);
        };
        float top = kMinusInfinity, total = 0;
        for (int32_t i = 0; i < parts.count; ++i) {
            // A part that saw nothing has a top of minus infinity.
            top = std::max(top, part_at(i)[padded + 1]);
        }
        for (int64_t d = 0; d < padded; d += kLanes) store(merged + d, zero());
        for (int32_t i = 0; i < parts.count; ++i) {
            const float* part = part_at(i);
            if (part[padded + 1] == kMinusInfinity && part[padded] == 0) continue;
            const float factor = top == kMinusInfinity ? 1.0f : std::exp(part[padded + 1] - top);
            total += part[padded] * factor;
            for (int64_t d = 0; d < padded; d += kLanes) {
                store(merged + d, fma(load(part + d), splat(factor), load(merged + d)));
            }
        }
        write_out(parts.token + query, query_head, top, total,
                  [&](int64_t column) { return merged + column; });
    }

    template <typename SumsAt>
    void write_out(int64_t token, int64_t query_head, float top, float total,
                   const SumsAt& sums_at) const {
        T* out = static_cast<T*>(rows_.out) + token * rows_.out_stride +
                 query_head * shape.value_dim;
        if (shape.sinks != nullptr) total += std::exp(shape.sinks[query_head] - top);
        const float scale = 1.0f / total;
        int64_t d = 0;
        for (; d + kLanes <= shape.value_dim; d += kLanes) {
            store(out + d, load(sums_at(d)) * splat(scale));
        }
        if (d == shape.value_dim) return;
        const float* rest = sums_at(d);
        for (int64_t i = 0; d + i < shape.value_dim; ++i) from_float(rest[i] * scale, out + d + i);
    }

    // out = a head of a row, rotated by its token's angles, padded to the pool's width.
    void rotate(const T* head, int64_t token, T* out) const {
        const int64_t half = rows_.cosine == nullptr ? 0 : rows_.rotary_dim / 2;
        const float* cosine = rows_.cosine + token * half;
        const float* sine = rows_.sine + token * half;
        int64_t i = 0;
        for (; i + kLanes <= half; i += kLanes) {
            const Vec x = load(head + i), y = load(head + i + half);
            const Vec c = load(cosine + i), s = load(sine + i);
            store(out + i, x * c - y * s);
            store(out + i + half, y * c + x * s);
        }
        for (; i < half; ++i) {
            const float x = to_float(head[i]), y = to_float(head[i + half]);
            from_float(x * cosine[i] - y * sine[i], out + i);
            from_float(y * cosine[i] + x * sine[i], out + i + half);
        }
        std::memcpy(out + 2 * half, head + 2 * half, (shape.key_dim - 2 * half) * sizeof(T));
        for (i = shape.key_dim; i < pool.key_dim; ++i) out[i] = T{};
    }

   public:
    const TmAttentionPlan& plan;
    const TmBatch& batch;
    const TmAttentionShape& shape;
    const KvPool<T> pool;
    const int64_t group;
    const int64_t query_stride;

   private:
    const TmAttentionRows& rows_;
};
