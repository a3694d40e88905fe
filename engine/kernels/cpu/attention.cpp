#include "attention.h"

#include "attention_decode.h"
#include "attention_dense.h"

namespace {

// Which piece of which head.
struct Piece {
    const Item* item;
    int64_t head;
};

// What one thread does of a layer.
template <typename T>
class Worker {
   public:
    Worker(const Layer<T>& layer, DenseScratch<T>& dense, DecodeScratch<T>& decode, Team& team)
        : plan_(layer.plan), layer_(layer), heads_(layer.shape.num_kv_heads), dense_(layer, dense),
          decode_(layer, decode), row_(dense.queries.reserve(layer.query_stride)), team_(team) {}

    void write() {
        const int64_t count = static_cast<int64_t>(plan_.written.size()) * heads_;
        for (int64_t i = team_.take(); i < count; i = team_.take()) {
            layer_.write(plan_.written[i / heads_], i % heads_, true, row_);
        }
    }

    void attend() {
        const int64_t num_dense = static_cast<int64_t>(plan_.dense.size()) * heads_;
        const int64_t count = num_dense + static_cast<int64_t>(plan_.decodes.size()) * heads_;
        int64_t next = team_.take();
        while (next < count) {
            const int64_t i = next;
            // Taken early, so that what it reads first can be asked for.
            next = team_.take();
            const Piece piece = piece_at(i);
            if (i < num_dense || layer_.group > kDecodeGroup) {
                dense_.attend(*piece.item, piece.head);
            } else {
                const Piece ahead = next < count ? piece_at(next) : Piece{nullptr, 0};
                decode_.attend(*piece.item, piece.head, ahead.item, ahead.head);
            }
        }
    }

   private:
    // Dense pieces go head by head, so that a head's keys stay in the second cache; of the others a
    // sequence's heads follow each other, as they do in its blocks.
    Piece piece_at(int64_t i) const {
        const int64_t dense = static_cast<int64_t>(plan_.dense.size());
        if (i < dense * heads_) return {&plan_.dense[i % dense], i / dense};
        i -= dense * heads_;
        return {&plan_.decodes[i / heads_], i % heads_};
    }

    const TmAttentionPlan& plan_;
    const Layer<T>& layer_;
    const int64_t heads_;
    Dense<T> dense_;
    Decode<T> decode_;
    T* const row_;
    Team& team_;
};

template <typename T>
void attention(const TmAttentionPlan& plan, const TmAttentionShape& shape,
               const TmAttentionRows& rows, void* pool, Team& team, int thread) {
    thread_local DenseScratch<T> dense;
    thread_local DecodeScratch<T> decode;
    const Layer<T> layer(plan, shape, rows, pool);
    Worker<T> worker(layer, dense, decode, team);
    if (!plan.written.empty() || plan.num_slots > 0) {
        if (thread == 0) plan.reserve(shape);
        worker.write();
        team.barrier();
    }
    worker.attend();
    team.barrier();
}

}  // namespace

void attention_in_team(const TmAttentionPlan& plan, const TmAttentionShape& shape,
                       const TmAttentionRows& rows, void* pool, Team& team, int thread) {
    if (shape.dtype == TM_BFLOAT16) {
        attention<bf16>(plan, shape, rows, pool, team, thread);
    } else {
        attention<float>(plan, shape, rows, pool, team, thread);
    }
}

int64_t tm_attention_block_bytes(const TmAttentionShape* shape, int64_t block_size) {
    if (shape->dtype == TM_BFLOAT16) {
        return KvPool<bf16>(*shape, block_size, nullptr).head_bytes() * shape->num_kv_heads;
    }
    return KvPool<float>(*shape, block_size, nullptr).head_bytes() * shape->num_kv_heads;
}

TmAttentionPlan* tm_attention_plan(const TmBatch* batch) {
    try {
        return new TmAttentionPlan(*batch);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
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
