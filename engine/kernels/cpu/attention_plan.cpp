#include "attention_plan.h"

#include <algorithm>

namespace {

constexpr int32_t kItemQueries = 32;  // queries of a sequence that are attended together
// A single query is cut so often that a long sequence alone keeps all threads busy. By the position
// and not by what else runs: a row's sums are then the same in every batch.
constexpr int32_t kPartKeys = 512;

bool is_longer(const Item& a, const Item& b) {
    return int64_t{a.count} * (a.end - a.start) > int64_t{b.count} * (b.end - b.start);
}

}  // namespace

TmAttentionPlan::TmAttentionPlan(const TmBatch& batch) : batch(&batch) {
    parts.resize(batch.num_seqs, Parts{0, 0});
    int32_t token = 0;
    for (int32_t sequence = 0; sequence < batch.num_seqs; ++sequence) {
        if (batch.query_lens[sequence] == 1) {
            add_decode(sequence, token);
        } else {
            add_chunk(sequence, token);
        }
        token += batch.query_lens[sequence];
    }
    // A long piece that is taken last leaves the other threads waiting for it.
    std::stable_sort(dense.begin(), dense.end(), is_longer);
    std::stable_sort(decodes.begin(), decodes.end(), is_longer);
}

void TmAttentionPlan::add_chunk(int32_t sequence, int32_t token) {
    const int32_t queries = batch->query_lens[sequence];
    const int32_t position = batch->context_lens[sequence] - queries;
    for (int32_t i = 0; i < queries; i += kItemQueries) {
        const int32_t count = std::min(kItemQueries, queries - i);
        const int32_t end = position + i + count;
        const Item item = {sequence, token + i, position + i, count, 0, end, -1, false};
        dense.push_back(item);
        written.push_back(item);
    }
}

void TmAttentionPlan::add_decode(int32_t sequence, int32_t token) {
    const int32_t context = batch->context_lens[sequence];
    const int32_t block = static_cast<int32_t>(batch->block_size);
    const int32_t step = std::max(kPartKeys / block, 1) * block;
    const bool is_whole = context <= step;
    if (!is_whole) parts[sequence] = {num_slots, (context + step - 1) / step};
    for (int32_t start = 0; start < context; start += step) {
        const int32_t end = std::min(context, start + step);
        const int32_t slot = is_whole ? -1 : num_slots++;
        decodes.push_back({sequence, token, context - 1, 1, start, end, slot, end == context});
    }
}

void TmAttentionPlan::reserve(const TmAttentionShape& shape) const {
    const size_t floats = int64_t{num_slots} * shape.num_heads * part_floats(shape);
    if (sums.size() < floats) sums.resize(floats);
    const int64_t counters = batch->num_seqs * shape.num_kv_heads;
    if (counters > num_arrived) {
        arrived.reset(new std::atomic<int32_t>[counters]());
        num_arrived = counters;
    }
}
