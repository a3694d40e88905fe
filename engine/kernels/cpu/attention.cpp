// Paged attention in plain loops. The pool of a layer is, for each block, its keys
// [kv heads, block, key_dim] and then its values [kv heads, block, value_dim].
#include "attention.h"

#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "simd.h"

struct TmAttentionPlan {
    const TmBatch* batch;
    std::vector<int32_t> sequence_of;   // [tokens]
    std::vector<int32_t> position_of;   // [tokens]
};

namespace {

template <typename T>
struct Pool {
    T* base;
    const TmAttentionShape& shape;
    int64_t block_size;

    T* block(int64_t block) const {
        return base + block * shape.num_kv_heads * block_size * (shape.key_dim + shape.value_dim);
    }
    T* key(int64_t b, int64_t head, int64_t slot) const {
        return block(b) + (head * block_size + slot) * shape.key_dim;
    }
    T* value(int64_t b, int64_t head, int64_t slot) const {
        return block(b) + shape.num_kv_heads * block_size * shape.key_dim +
               (head * block_size + slot) * shape.value_dim;
    }
};

// dst = src rotated by the token's angles.
template <typename T, typename Out>
void rotate(const T* src, Out* dst, const TmAttentionRows& rows, int64_t token, int64_t dim) {
    const int64_t half = rows.cosine == nullptr ? 0 : rows.rotary_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
        const float c = rows.cosine[token * half + i], s = rows.sine[token * half + i];
        const float x = to_float(src[i]), y = to_float(src[i + half]);
        from_float(x * c - y * s, dst + i);
        from_float(y * c + x * s, dst + i + half);
    }
    for (int64_t i = 2 * half; i < dim; ++i) from_float(to_float(src[i]), dst + i);
}

template <typename T>
void write_token(const TmAttentionPlan& plan, const TmAttentionRows& rows, const Pool<T>& pool,
                 int64_t token) {
    const TmAttentionShape& shape = pool.shape;
    const int64_t position = plan.position_of[token];
    const int64_t block = plan.batch->block_tables[plan.sequence_of[token] * plan.batch->table_stride +
                                                   position / pool.block_size];
    const int64_t slot = position % pool.block_size;
    const T* key = static_cast<const T*>(rows.key) + token * rows.key_stride;
    const T* value = static_cast<const T*>(rows.value) + token * rows.value_stride;
    for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
        rotate(key + head * shape.key_dim, pool.key(block, head, slot), rows, token, shape.key_dim);
        std::memcpy(pool.value(block, head, slot), value + head * shape.value_dim,
                    shape.value_dim * sizeof(T));
    }
}

template <typename T>
void attend_head(const TmAttentionPlan& plan, const TmAttentionRows& rows, const Pool<T>& pool,
                 int64_t token, int64_t head) {
    const TmAttentionShape& shape = pool.shape;
    const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
    const int64_t end = plan.position_of[token] + 1;
    const int64_t start = shape.window > 0 && end > shape.window ? end - shape.window : 0;
    const int32_t* table =
        plan.batch->block_tables + plan.sequence_of[token] * plan.batch->table_stride;
    const T* source =
        static_cast<const T*>(rows.query) + token * rows.query_stride + head * shape.key_dim;
    std::vector<float> query(shape.key_dim), sums(shape.value_dim), weights(end - start);
    rotate(source, query.data(), rows, token, shape.key_dim);
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t i = start; i < end; ++i) {
        const T* key = pool.key(table[i / pool.block_size], kv_head, i % pool.block_size);
        float score = 0;
        for (int64_t d = 0; d < shape.key_dim; ++d) score += query[d] * to_float(key[d]);
        score *= shape.scale;
        if (shape.softcap > 0) score = shape.softcap * std::tanh(score / shape.softcap);
        weights[i - start] = score;
        // Written so that a NaN stays.
        top = score <= top ? top : score;
    }
    float total = 0;
    for (int64_t i = start; i < end; ++i) {
        const float weight = std::exp(weights[i - start] - top);
        const T* value = pool.value(table[i / pool.block_size], kv_head, i % pool.block_size);
        total += weight;
        for (int64_t d = 0; d < shape.value_dim; ++d) sums[d] += weight * to_float(value[d]);
    }
    T* out = static_cast<T*>(rows.out) + token * rows.out_stride + head * shape.value_dim;
    for (int64_t d = 0; d < shape.value_dim; ++d) from_float(sums[d] / total, out + d);
}

template <typename T>
void attention(const TmAttentionPlan& plan, const TmAttentionShape& shape,
               const TmAttentionRows& rows, void* pool_base, Team& team) {
    const Pool<T> pool{static_cast<T*>(pool_base), shape, plan.batch->block_size};
    const int64_t tokens = static_cast<int64_t>(plan.sequence_of.size());
    for (int64_t token = team.take(); token < tokens; token = team.take()) {
        write_token(plan, rows, pool, token);
    }
    team.barrier();
    for (int64_t item = team.take(); item < tokens * shape.num_heads; item = team.take()) {
        attend_head(plan, rows, pool, item / shape.num_heads, item % shape.num_heads);
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
    const int64_t element = shape->dtype == TM_BFLOAT16 ? 2 : 4;
    return shape->num_kv_heads * block_size * (shape->key_dim + shape->value_dim) * element;
}

TmAttentionPlan* tm_attention_plan(const TmBatch* batch) {
    TmAttentionPlan* plan = new (std::nothrow) TmAttentionPlan{batch, {}, {}};
    if (plan == nullptr) return nullptr;
    for (int64_t seq = 0; seq < batch->num_seqs; ++seq) {
        for (int32_t i = batch->query_lens[seq]; i > 0; --i) {
            plan->sequence_of.push_back(static_cast<int32_t>(seq));
            plan->position_of.push_back(batch->context_lens[seq] - i);
        }
    }
    return plan;
}

void tm_attention_plan_free(TmAttentionPlan* plan) { delete plan; }

void tm_attention(const TmAttentionPlan* plan, const TmAttentionShape* shape,
                  const TmAttentionRows* rows, void* pool, int32_t num_threads) {
    run_team(num_threads, [&](Team& team, int thread) {
        attention_in_team(*plan, *shape, *rows, pool, team, thread);
    });
}
