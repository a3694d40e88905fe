#include "attention_plan.h"

#include <algorithm>

namespace {

constexpr int32_t kItemQueries = 32;  // queries that are attended together
// The keys of few queries are cut so often that a long sequence alone keeps all threads busy. By the
// position and not by what else runs: a row's sums are then the same in every batch.
constexpr int32_t kPartKeys = 512;
constexpr int32_t kSharedKeys = 2048;  // keys of a piece that several sequences share

// So many keys in whole blocks, at least one.
int32_t whole_blocks(const TmBatch& batch, int32_t keys) {
    const int32_t block = static_cast<int32_t>(batch.block_size);
    return std::max(keys / block, 1) * block;
}

bool is_longer(const Item& a, const Item& b) {
    return int64_t{a.count} * (a.end - a.start) > int64_t{b.count} * (b.end - b.start);
}

}  // namespace

TmAttentionPlan::TmAttentionPlan(const TmBatch& batch) : batch(&batch) {
    shared_keys_.resize(batch.num_seqs, 0);
    num_shared_.resize(batch.num_seqs, 0);
    int32_t token = 0;
    for (int32_t sequence = 0; sequence < batch.num_seqs; ++sequence) {
        parts.push_back({0, 0, token, batch.query_lens[sequence]});
        if (batch.query_lens[sequence] > kFewQueries) add_chunk(sequence);
        token += batch.query_lens[sequence];
    }
    const std::vector<SharedKeys> shared = find_shared_keys(batch);
    for (const SharedKeys& keys : shared) count_shared(keys);
    for (int32_t sequence = 0; sequence < batch.num_seqs; ++sequence) {
        if (batch.query_lens[sequence] <= kFewQueries) add_few(sequence);
    }
    for (const SharedKeys& keys : shared) add_shared(keys);
    // A long piece that is taken last leaves the other threads waiting for it.
    std::stable_sort(dense.begin(), dense.end(), is_longer);
    std::stable_sort(decodes.begin(), decodes.end(), is_longer);
}

void TmAttentionPlan::add_chunk(int32_t sequence) {
    const Parts& all = parts[sequence];
    const int32_t position = batch->context_lens[sequence] - all.queries;
    for (int32_t i = 0; i < all.queries; i += kItemQueries) {
        const int32_t count = std::min(kItemQueries, all.queries - i);
        const int32_t end = position + i + count;
        const Item item = {sequence, all.token + i, position + i, count, 0, end, -1, false};
        dense.push_back(item);
        written.push_back(item);
    }
}

// How many parts its keys will be for each of the sequences.
void TmAttentionPlan::count_shared(const SharedKeys& keys) {
    const int32_t step = whole_blocks(*batch, kSharedKeys);
    for (const int32_t sequence : keys.sequences) {
        parts[sequence].count += (keys.end - keys.start + step - 1) / step;
        shared_keys_[sequence] = keys.end;
    }
}

// The keys that few queries have for themselves, and slots for all of their parts.
void TmAttentionPlan::add_few(int32_t sequence) {
    Parts& all = parts[sequence];
    const int32_t context = batch->context_lens[sequence], position = context - all.queries;
    const int32_t step = whole_blocks(*batch, kPartKeys);
    const int32_t shared = all.count;
    const int32_t own = (context + step - 1) / step - shared_keys_[sequence] / step;
    const bool is_whole = shared + own == 1;
    int32_t slot = num_slots + shared * all.queries;
    all.count = is_whole ? 0 : shared + own;
    all.first_slot = num_slots;
    num_slots += all.count * all.queries;
    for (int32_t start = shared_keys_[sequence]; start < context;) {
        const int32_t end = std::min(context, start / step * step + step);
        decodes.push_back({sequence, all.token, position, all.queries, start, end,
                           is_whole ? -1 : slot, end > position});
        slot += all.queries;
        start = end;
    }
}

void TmAttentionPlan::add_shared(const SharedKeys& keys) {
    const int32_t step = whole_blocks(*batch, kSharedKeys);
    for (int32_t start = keys.start; start < keys.end; start += step) {
        const int32_t first = static_cast<int32_t>(members.size());
        for (const int32_t sequence : keys.sequences) {
            const Parts& all = parts[sequence];
            const int32_t position = batch->context_lens[sequence] - all.queries;
            // Ranges come by ascending keys, so a sequence's slots are filled in order.
            const int32_t slot = all.first_slot + num_shared_[sequence]++ * all.queries;
            for (int32_t i = 0; i < all.queries; ++i) {
                members.push_back({sequence, all.token + i, position + i, slot + i});
            }
        }
        const int32_t count = static_cast<int32_t>(members.size()) - first;
        for (int32_t i = 0; i < count; i += kItemQueries) {
            dense.push_back({members[first + i].sequence, 0, 0, std::min(kItemQueries, count - i),
                             start, std::min(keys.end, start + step), 0, false, first + i});
        }
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
