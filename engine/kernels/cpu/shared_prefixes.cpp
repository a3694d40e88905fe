#include "shared_prefixes.h"

#include <algorithm>

namespace {

// With fewer keys or sequences the merging costs more than the product saves (docs/performance.md).
constexpr int64_t kMinKeys = 128;
constexpr int64_t kMinSequences = 4;

// The tree of block tables, walked by its runs of neighbours in sorted order.
class Finder {
   public:
    explicit Finder(const TmBatch& batch) : batch_(batch) {
        for (int32_t i = 0; i < batch.num_seqs; ++i) {
            if (batch.query_lens[i] <= kFewQueries && blocks_of(i) > 0) sorted_.push_back(i);
        }
        std::sort(sorted_.begin(), sorted_.end(), [this](int32_t a, int32_t b) {
            return std::lexicographical_compare(table(a), table(a) + blocks_of(a), table(b),
                                                table(b) + blocks_of(b));
        });
        for (size_t i = 0; i + 1 < sorted_.size(); ++i) {
            common_.push_back(common(sorted_[i], sorted_[i + 1]));
        }
    }

    std::vector<SharedKeys> find() {
        walk(0, sorted_.size(), 0);
        return std::move(found_);
    }

   private:
    const int32_t* table(int32_t i) const { return batch_.block_tables + i * batch_.table_stride; }

    // All before those that the step writes.
    int64_t blocks_of(int32_t i) const {
        return (batch_.context_lens[i] - batch_.query_lens[i]) / batch_.block_size;
    }

    int64_t common(int32_t a, int32_t b) const {
        const int64_t most = std::min(blocks_of(a), blocks_of(b));
        return std::mismatch(table(a), table(a) + most, table(b)).first - table(a);
    }

    // Sequences first .. last, whose first `done` blocks are taken care of.
    void walk(size_t first, size_t last, int64_t done) {
        if (last - first < kMinSequences) return;
        const auto begin = common_.begin() + first, end = common_.begin() + last - 1;
        const int64_t shared = *std::min_element(begin, end);
        if ((shared - done) * batch_.block_size >= kMinKeys) {
            found_.push_back({{sorted_.begin() + first, sorted_.begin() + last},
                              static_cast<int32_t>(done * batch_.block_size),
                              static_cast<int32_t>(shared * batch_.block_size)});
            done = shared;
        }
        for (size_t start = first; start < last;) {
            size_t stop = start + 1;
            while (stop < last && common_[stop - 1] > shared) ++stop;
            walk(start, stop, done);
            start = stop;
        }
    }

    const TmBatch& batch_;
    std::vector<int32_t> sorted_;
    std::vector<int64_t> common_;  // blocks that a sequence has in common with the next
    std::vector<SharedKeys> found_;
};

}  // namespace

std::vector<SharedKeys> find_shared_keys(const TmBatch& batch) { return Finder(batch).find(); }
