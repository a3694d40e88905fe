// Paged attention as two products per block: queries times keys, weights times values. The softmax
// is the online one (Milakov and Gimelshein, 2018), over chunks of keys that stay in the first cache.
#include "attention.h"

#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "kv_pool.h"

namespace {

constexpr int64_t kItemTokens = 16;  // queries of a sequence that are attended together
constexpr int64_t kRows = 32;        // queries times heads at once: two tiles of AMX
constexpr int64_t kChunk = 512;      // keys whose scores are held at once
constexpr int64_t kScores = kChunk + kLanes;  // a row of them; a pair may reach one key further
constexpr float kSmallestExponent = -87.0f;  // below it a weight is 0
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Some neighbouring queries of one sequence.
struct Item {
    int32_t sequence;
    int32_t token;     // row of the first query in the batch
    int32_t position;  // of the first query
    int32_t count;
    bool writes;       // a single query writes its own key and value first: nobody else reads them
};

}  // namespace

struct TmAttentionPlan {
    const TmBatch* batch;
    std::vector<Item> items;    // longest first
    std::vector<Item> written;  // those whose keys must be stored before anybody attends
};

namespace {

// What a thread needs for one item; kept from call to call.
template <typename T>
struct Scratch {
    std::vector<T> queries, weights, row;
    std::vector<float> sums, scores, out;

    void reserve(const KvPool<T>& pool) {
        const int64_t groups = (pool.value_panels + kTilePanels - 1) / kTilePanels;
        queries.resize(kRows * round_up(pool.key_dim, 32));
        weights.resize(kRows * kScores);
        row.resize(std::max(pool.key_dim, pool.value_dim));
        sums.resize(kRows * kTileColumns);
        scores.resize(kRows * kScores);
        out.resize(groups * kRows * kTileColumns);
    }
};

// The attention of one layer as one thread sees it.
template <typename T>
class Layer {
   public:
    Layer(const TmAttentionPlan& plan, const TmAttentionShape& shape, const TmAttentionRows& rows,
          void* pool, Scratch<T>& scratch)
        : batch_(*plan.batch),
          shape_(shape),
          rows_(rows),
          pool_(shape, plan.batch->block_size, pool),
          scratch_(scratch),
          group_(shape.num_heads / shape.num_kv_heads),
          query_stride_(round_up(pool_.key_dim, 32)) {
        scratch_.reserve(pool_);
    }

    void write(const Item& item, int64_t head) {
        const int64_t last = batch_.context_lens[item.sequence] - 1;
        for (int64_t i = 0; i < item.count; ++i) {
            const int64_t position = item.position + i, token = item.token + i;
            const int64_t block = table(item)[position / batch_.block_size];
            const int64_t slot = position % batch_.block_size;
            const T* key = static_cast<const T*>(rows_.key) + token * rows_.key_stride;
            const T* value = static_cast<const T*>(rows_.value) + token * rows_.value_stride;
            rotate(key + head * shape_.key_dim, token, scratch_.row.data());
            pool_.write_key(block, head, slot, scratch_.row.data());
            pool_.write_value(block, head, slot, value + head * shape_.value_dim,
                              position == last || slot == batch_.block_size - 1);
        }
    }

    void attend(const Item& item, int64_t head) {
        if (item.writes) write(item, head);
        const int64_t total = item.count * group_;
        for (int64_t first = 0; first < total; first += kRows) {
            attend_rows(item, head, first, std::min(kRows, total - first));
        }
    }

   private:
    // Row r of an item is query r / group_ with head r % group_ of those that share the keys.
    void attend_rows(const Item& item, int64_t head, int64_t first, int64_t count) {
        for (int64_t r = 0; r < count; ++r) {
            const int64_t token = item.token + (first + r) / group_;
            const int64_t query_head = head * group_ + (first + r) % group_;
            rotate(static_cast<const T*>(rows_.query) + token * rows_.query_stride +
                       query_head * shape_.key_dim,
                   token, scratch_.queries.data() + r * query_stride_);
            top_[r] = kMinusInfinity;
            total_[r] = 0;
        }
        std::fill(scratch_.out.begin(), scratch_.out.end(), 0.0f);
        const int64_t end = item.position + (first + count - 1) / group_ + 1;
        const int64_t step = std::max(kChunk / batch_.block_size, int64_t{1}) * batch_.block_size;
        for (int64_t start = start_of(item.position + first / group_) / step * step; start < end;
             start += step) {
            chunk(item, head, first, count, start, std::min(end, start + step));
        }
        write_out(item, head, first, count);
    }

    int64_t start_of(int64_t position) const {
        const int64_t start = position + 1 - shape_.window;
        return shape_.window > 0 && start > 0 ? start : 0;
    }

    // Keys start .. end of the sequence, of which each row sees some.
    void chunk(const Item& item, int64_t head, int64_t first, int64_t count, int64_t start,
               int64_t end) {
        // Blocks larger than the scores' buffer are taken in parts of whole panels.
        for (int64_t part = start; part < end; part += kChunk) {
            const int64_t stop = std::min(end, part + kChunk);
            score(item, head, count, part, stop);
            for (int64_t r = 0; r < count; ++r) {
                weigh(r, item.position + (first + r) / group_, part, stop);
            }
            add_values(item, head, count, part, stop);
        }
    }

    // scores[row][key - start] for the keys of a chunk
    void score(const Item& item, int64_t head, int64_t count, int64_t start, int64_t end) {
        constexpr int64_t kStep = kTilePanels * kPanel;
        for (int64_t key = start; key < end;) {
            const int64_t slot = key % batch_.block_size;
            const int64_t stop = std::min({end, key + kStep, key - slot + batch_.block_size});
            const T* keys = pool_.keys(table(item)[key / batch_.block_size], head) +
                            slot / kPanel * pool_.key_stride();
            const Panels<T> panels = {keys, pool_.key_stride(), (stop - key + kPanel - 1) / kPanel};
            multiply_rows(count, scratch_.queries.data(), query_stride_, panels, pool_.key_dim,
                          scratch_.sums.data());
            for (int64_t r = 0; r < count; ++r) {
                std::memcpy(scratch_.scores.data() + r * kScores + key - start,
                            scratch_.sums.data() + r * kTileColumns, (stop - key) * sizeof(float));
            }
            key = stop;
        }
    }

    // Turn a row's scores into weights, with what came before scaled to the new largest score.
    void weigh(int64_t r, int64_t position, int64_t start, int64_t end) {
        float* scores = scratch_.scores.data() + r * kScores;
        T* weights = scratch_.weights.data() + r * kScores;
        const int64_t padded = round_up(end - start + 1, kLanes);
        const int64_t from = std::max(start_of(position) - start, int64_t{0});
        const int64_t to = std::min(position + 1, end) - start;
        // Set and not added: what is not visible may be NaN.
        for (int64_t i = 0; i < std::min(from, padded); ++i) scores[i] = kMinusInfinity;
        for (int64_t i = std::max(to, int64_t{0}); i < padded; ++i) scores[i] = kMinusInfinity;
        Vec highest = splat(kMinusInfinity);
        for (int64_t i = 0; i < padded; i += kLanes) {
            const Vec s = load(scores + i) * splat(shape_.scale);
            store(scores + i, s);
            if (shape_.softcap > 0) cap(scores + i);
            highest = max(load(scores + i), highest);
        }
        const float top = std::max(top_[r], largest(highest));
        const float shift = top == kMinusInfinity ? 0.0f : top;
        Vec sum_of_weights = zero();
        for (int64_t i = 0; i < padded; i += kLanes) {
            const Vec s = load(scores + i) - splat(shift);
            const Vec weight = zero_below(kSmallestExponent, s, exp(s));
            store(weights + i, weight);
            sum_of_weights = sum_of_weights + weight;
        }
        const float scale = top_[r] == kMinusInfinity ? 0.0f : std::exp(top_[r] - shift);
        total_[r] = total_[r] * scale + sum(sum_of_weights);
        if (top_[r] != kMinusInfinity && scale != 1.0f) rescale(r, scale);
        top_[r] = top;
    }

    void cap(float* scores) {
        for (int64_t i = 0; i < kLanes; ++i) {
            if (scores[i] != kMinusInfinity) {
                scores[i] = shape_.softcap * std::tanh(scores[i] / shape_.softcap);
            }
        }
    }

    void rescale(int64_t r, float scale) {
        for (size_t base = r * kTileColumns; base < scratch_.out.size();
             base += kRows * kTileColumns) {
            float* out = scratch_.out.data() + base;
            for (int64_t i = 0; i < kTileColumns; i += kLanes) {
                store(out + i, load(out + i) * splat(scale));
            }
        }
    }

    // out[row] += weights of the chunk times their values
    void add_values(const Item& item, int64_t head, int64_t count, int64_t start, int64_t end) {
        for (int64_t key = start; key < end;) {
            const int64_t slot = key % batch_.block_size;
            const int64_t stop = std::min(end, key - slot + batch_.block_size);
            const T* values = pool_.values(table(item)[key / batch_.block_size], head) +
                              slot * kPanel;
            const int64_t tokens = round_up(stop - key, KvPool<T>::kPairs);
            for (int64_t p = 0; p < pool_.value_panels; p += kTilePanels) {
                const Panels<T> panels = {values + p * pool_.value_stride(), pool_.value_stride(),
                                          std::min<int64_t>(kTilePanels, pool_.value_panels - p)};
                multiply_rows(count, scratch_.weights.data() + key - start, kScores, panels, tokens,
                              scratch_.out.data() + p / kTilePanels * kRows * kTileColumns, true);
            }
            key = stop;
        }
    }

    void write_out(const Item& item, int64_t head, int64_t first, int64_t count) {
        for (int64_t r = 0; r < count; ++r) {
            const int64_t token = item.token + (first + r) / group_;
            const int64_t query_head = head * group_ + (first + r) % group_;
            T* out = static_cast<T*>(rows_.out) + token * rows_.out_stride +
                     query_head * shape_.value_dim;
            float total = total_[r];
            if (shape_.sinks != nullptr) total += std::exp(shape_.sinks[query_head] - top_[r]);
            const float scale = 1.0f / total;
            for (int64_t d = 0; d < shape_.value_dim; d += kLanes) {
                const int64_t group = d / kTileColumns, column = d % kTileColumns;
                const float* sums =
                    scratch_.out.data() + (group * kRows + r) * kTileColumns + column;
                if (d + kLanes <= shape_.value_dim) {
                    store(out + d, load(sums) * splat(scale));
                    continue;
                }
                for (int64_t i = 0; d + i < shape_.value_dim; ++i) {
                    from_float(sums[i] * scale, out + d + i);
                }
            }
        }
    }

    // out = a head of a row, rotated by its token's angles, padded to the pool's width.
    void rotate(const T* head, int64_t token, T* out) {
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
        std::memcpy(out + 2 * half, head + 2 * half, (shape_.key_dim - 2 * half) * sizeof(T));
        for (i = shape_.key_dim; i < pool_.key_dim; ++i) out[i] = T{};
    }

    const int32_t* table(const Item& item) const {
        return batch_.block_tables + item.sequence * batch_.table_stride;
    }

    const TmBatch& batch_;
    const TmAttentionShape& shape_;
    const TmAttentionRows& rows_;
    const KvPool<T> pool_;
    Scratch<T>& scratch_;
    const int64_t group_, query_stride_;
    float top_[kRows], total_[kRows];
};

template <typename T>
void attention(const TmAttentionPlan& plan, const TmAttentionShape& shape,
               const TmAttentionRows& rows, void* pool, Team& team) {
    thread_local Scratch<T> scratch;
    Layer<T> layer(plan, shape, rows, pool, scratch);
    const int64_t heads = shape.num_kv_heads;
    if (!plan.written.empty()) {
        const int64_t count = static_cast<int64_t>(plan.written.size()) * heads;
        for (int64_t i = team.take(); i < count; i = team.take()) {
            layer.write(plan.written[i / heads], i % heads);
        }
        team.barrier();
    }
    const int64_t count = static_cast<int64_t>(plan.items.size()) * heads;
    for (int64_t i = team.take(); i < count; i = team.take()) {
        layer.attend(plan.items[i / heads], i % heads);
    }
    team.barrier();
}

}  // namespace

void attention_in_team(const TmAttentionPlan& plan, const TmAttentionShape& shape,
                       const TmAttentionRows& rows, void* pool, Team& team, int) {
    if (shape.dtype == TM_BFLOAT16) {
        attention<bf16>(plan, shape, rows, pool, team);
    } else {
        attention<float>(plan, shape, rows, pool, team);
    }
}

int64_t tm_attention_block_bytes(const TmAttentionShape* shape, int64_t block_size) {
    if (shape->dtype == TM_BFLOAT16) {
        return KvPool<bf16>(*shape, block_size, nullptr).head_elements() * shape->num_kv_heads * 2;
    }
    return KvPool<float>(*shape, block_size, nullptr).head_elements() * shape->num_kv_heads * 4;
}

TmAttentionPlan* tm_attention_plan(const TmBatch* batch) {
    TmAttentionPlan* plan = new (std::nothrow) TmAttentionPlan{batch, {}, {}};
    if (plan == nullptr) return nullptr;
    int32_t token = 0;
    for (int32_t seq = 0; seq < batch->num_seqs; ++seq) {
        const int32_t queries = batch->query_lens[seq];
        const int32_t position = batch->context_lens[seq] - queries;
        for (int32_t i = 0; i < queries; i += kItemTokens) {
            const int32_t count = std::min<int32_t>(kItemTokens, queries - i);
            const Item item = {seq, token + i, position + i, count, queries == 1};
            plan->items.push_back(item);
            if (queries > 1) plan->written.push_back(item);
        }
        token += queries;
    }
    // A long piece that is taken last leaves the other threads waiting for it.
    std::stable_sort(plan->items.begin(), plan->items.end(), [](const Item& a, const Item& b) {
        return int64_t{a.count} * (a.position + a.count) > int64_t{b.count} * (b.position + b.count);
    });
    return plan;
}

void tm_attention_plan_free(TmAttentionPlan* plan) { delete plan; }

void tm_attention(const TmAttentionPlan* plan, const TmAttentionShape* shape,
                  const TmAttentionRows* rows, void* pool, int32_t num_threads) {
    run_team(num_threads, [&](Team& team, int thread) {
        configure_tiles();
        attention_in_team(*plan, *shape, *rows, pool, team, thread);
        release_tiles();
    });
}
