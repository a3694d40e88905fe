// A step's attention cut into pieces of work, once for all layers.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "attention.h"
#include "shared_prefixes.h"

// Some queries over some keys: neighbours of one sequence, or those of several that share the keys. A
// piece that sees only a part of its rows' keys leaves the part's sums in slots, one for each query,
// and whoever brings a sequence's last part merges them.
struct Item {
    int32_t sequence;  // of several one that has the keys
    int32_t token;     // row of the first query in the batch
    int32_t position;  // of the first query
    int32_t count;     // queries
    int32_t start;     // keys start .. end are attended, as far as each query sees them
    int32_t end;
    int32_t slot;      // where the first query's sums go; -1 where the piece sees all keys
    bool writes;       // few queries write their keys and values first: nobody else reads them
    int32_t first_member = -1;  // of several sequences, in the plan's members
};

// A query of a sequence among those that share keys.
struct Member {
    int32_t sequence, token, position, slot;
};

// A sequence's parts lie in neighbouring slots, by ascending keys and in each of them by query.
struct Parts {
    int32_t first_slot;
    int32_t count;     // 0: it is attended in one piece
    int32_t token;     // of its first query
    int32_t queries;
};

struct TmAttentionPlan {
    explicit TmAttentionPlan(const TmBatch& batch);

    // Room for the sums of all parts of a layer; by one thread, before anybody attends.
    void reserve(const TmAttentionShape& shape) const;

    const TmBatch* batch;
    std::vector<Item> written;  // those whose keys must be stored before anybody attends
    std::vector<Item> dense;    // several queries over the same keys; longest first
    std::vector<Item> decodes;  // few queries of a sequence; longest first
    std::vector<Member> members;
    std::vector<Parts> parts;   // of each sequence
    int32_t num_slots = 0;

    mutable std::vector<float> sums;  // [slots, heads, part_floats]
    mutable std::unique_ptr<std::atomic<int32_t>[]> arrived;  // [sequences, kv heads], 0 between layers
    mutable int64_t num_arrived = 0;

   private:
    void add_chunk(int32_t sequence);
    void count_shared(const SharedKeys& keys);
    void add_few(int32_t sequence);
    void add_shared(const SharedKeys& keys);

    // Of each sequence: its keys that are in shared pieces, and how many of its shared parts have
    // slots.
    std::vector<int32_t> shared_keys_, num_shared_;
};

// Floats of a row's part: its unscaled sums of values, then its total and its largest score.
inline int64_t part_floats(const TmAttentionShape& shape) {
    return (shape.value_dim + 15) / 16 * 16 + 16;
}
