#include "stack.h"

#include <cstring>
#include <vector>

#include "head.h"
#include "quantised.h"
#include "small_ops.h"
#include "workspace.h"

namespace {

// One thread's walk through the layers; all threads of the team walk together.
template <typename T>
class Walk {
   public:
    Walk(const TmStack& stack, const TmStep& step, Team& team, int thread)
        : stack_(stack),
          step_(step),
          team_(team),
          thread_(thread),
          work_(stack, step.num_tokens, step.num_rows, step.num_threads,
                static_cast<char*>(step.workspace)),
          count_(step.num_tokens),
          residual_(work_.residual),
          watch_(thread == 0) {}

    void run() {
        embed();
        for (int32_t i = 0; i < stack_.num_layers; ++i) run_layer(i);
        finish();
    }

   private:
    void embed() {
        const T* table = static_cast<const T*>(stack_.embedding);
        for_rows(count_, [&](int64_t row) {
            const T* source = table + step_.token_ids[row] * stack_.hidden;
            float* x = residual_ + row * stack_.hidden;
            for (int64_t i = 0; i < stack_.hidden; i += kLanes) store(x + i, load(source + i));
        });
        watch_.add_to(step_.profile->small);
    }

    void run_layer(int32_t index) {
        const TmLayer& layer = stack_.layers[index];
        norm(layer.input_norm, layer.qkv);
        project(layer);
        attend(layer, step_.pools[index]);
        if (index == stack_.num_layers - 1 && step_.hidden == nullptr) {
            add_product(keep_wanted(layer.out), layer.out);
        } else {
            add_product(attended(layer.out), layer.out);
        }
        norm(layer.mlp_norm, layer.gate_up);
        gate(layer.gate_up, layer.down);
        add_product(rows_for(work_.gated, layer.down), layer.down);
    }

    // What attention wrote, one row behind the other, as the product reads it.
    Rows<T> attended(const TmMatrix& weight) {
        const int64_t width = weight.inputs;
        if (!uses_bands<T>(weight)) return {work_.attended, width, false};
        const Rows<T> bands = {work_.banded, width, true};
        for_rows(count_, [&](int64_t row) {
            copy_row(work_.attended + row * width, width, bands.row(row));
        });
        return bands;
    }

    // Nobody reads the other tokens' outputs any more.
    Rows<T> keep_wanted(const TmMatrix& weight) {
        const Rows<T> kept = rows_for(work_.kept_attended, weight);
        for_rows(step_.num_rows, [&](int64_t row) {
            const int64_t token = step_.rows[row], n = stack_.hidden;
            std::memcpy(work_.kept_residual + row * n, residual_ + token * n, n * sizeof(float));
            copy_row(work_.attended + token * kept.width, kept.width, kept.row(row));
        });
        count_ = step_.num_rows;
        residual_ = work_.kept_residual;
        only_wanted_ = true;
        return kept;
    }

    // normed = the residual behind a norm, as the product with `reader` takes it
    void norm(const float* weight, const TmMatrix& reader) {
        const int64_t n = stack_.hidden;
        const Rows<T> out = rows_for(work_.normed, reader);
        for_rows(count_, [&](int64_t row) {
            rms_norm(residual_ + row * n, weight, n, stack_.epsilon, out.row(row));
        });
        watch_.add_to(step_.profile->small);
    }

    void project(const TmLayer& layer) {
        const int64_t width = layer.qkv.outputs;
        const float* bias = layer.qkv.bias;
        any_product(rows_for(work_.normed, layer.qkv), count_, layer.qkv, work_.int8, team_,
                [&](int64_t row, int64_t column, int64_t columns, const float* sums) {
                    T* out = work_.qkv + row * width + column;
                    for (int64_t i = 0; i < columns; i += kLanes) {
                        const Vec x = load(sums + i);
                        store(out + i, bias == nullptr ? x : x + load(bias + column + i));
                    }
                });
        watch_.add_to(step_.profile->products);
    }

    void attend(const TmLayer& layer, void* pool) {
        const TmAttentionShape& shape = layer.attention;
        const Widths widths(shape);
        if (layer.query_norm != nullptr) {
            for_rows(count_, [&](int64_t row) {
                T* heads = work_.qkv + row * widths.qkv();
                norm_heads(heads, shape.num_heads, shape.key_dim, layer.query_norm);
                norm_heads(heads + widths.query, shape.num_kv_heads, shape.key_dim,
                           layer.key_norm);
            });
        }
        const TmAttentionRows rows = {work_.qkv,
                                      work_.qkv + widths.query,
                                      work_.qkv + widths.query + widths.key,
                                      work_.attended,
                                      widths.qkv(),
                                      widths.qkv(),
                                      widths.qkv(),
                                      widths.attended,
                                      stack_.rotary_dim > 0 ? step_.cosine : nullptr,
                                      step_.sine,
                                      stack_.rotary_dim};
        attention_in_team(*step_.plan, shape, rows, pool, team_, thread_);
        watch_.add_to(step_.profile->attention);
    }

    void norm_heads(T* heads, int64_t count, int64_t dim, const float* weight) {
        for (int64_t h = 0; h < count; ++h) {
            rms_norm(heads + h * dim, weight, dim, stack_.epsilon,
                     Row<T>{heads + h * dim, kBandStep});
        }
    }

    // residual += rows times weight
    void add_product(const Rows<T>& rows, const TmMatrix& weight) {
        any_product(rows, count_, weight, work_.int8, team_,
                [&](int64_t row, int64_t column, int64_t columns, const float* sums) {
                    float* x = residual_ + row * stack_.hidden + column;
                    for (int64_t i = 0; i < columns; i += kLanes) {
                        Vec add = load(sums + i);
                        if (weight.bias != nullptr) add = add + load(weight.bias + column + i);
                        store(x + i, load(x + i) + add);
                    }
                });
        watch_.add_to(step_.profile->products);
    }

    // gated = silu(gate) * up; a panel of 16 gates is followed by the panel of their 16 ups.
    void gate(const TmMatrix& weight, const TmMatrix& reader) {
        const Rows<T> rows = rows_for(work_.gated, reader);
        any_product(rows_for(work_.normed, weight), count_, weight, work_.int8, team_,
                [&](int64_t row, int64_t column, int64_t columns, const float* sums) {
                    const Row<T> out = rows.row(row);
                    for (int64_t i = 0; i < columns; i += 2 * kLanes) {
                        Vec g = load(sums + i), u = load(sums + i + kLanes);
                        if (weight.bias != nullptr) {
                            g = g + load(weight.bias + column + i);
                            u = u + load(weight.bias + column + i + kLanes);
                        }
                        store(out.at((column + i) / 2), silu<T>(g) * u);
                    }
                });
        watch_.add_to(step_.profile->products);
    }

    void finish() {
        const int64_t n = stack_.hidden;
        if (step_.hidden != nullptr) {
            for_rows(count_, [&](int64_t row) {
                norm_last(row, Row<float>{step_.hidden + row * n, kBandStep});
            });
        }
        const Rows<T> rows = rows_for(work_.normed, stack_.head);
        for_rows(step_.num_rows, [&](int64_t row) {
            norm_last(only_wanted_ ? row : step_.rows[row], rows.row(row));
        });
        watch_.add_to(step_.profile->small);
        Head<T>(stack_.head, step_, work_, thread_).run(rows, team_);
        watch_.add_to(step_.profile->head);
    }

    template <typename Out>
    void norm_last(int64_t row, Row<Out> out) {
        const int64_t n = stack_.hidden;
        rms_norm(residual_ + row * n, stack_.final_norm, n, stack_.epsilon, out);
    }

    // work(row) for each row, a few at a time to whoever is free; ends with a barrier.
    template <typename Work>
    void for_rows(int64_t count, const Work& work) {
        constexpr int64_t kRows = 4;
        for (int64_t i = team_.take(); i * kRows < count; i = team_.take()) {
            const int64_t end = std::min(count, (i + 1) * kRows);
            for (int64_t row = i * kRows; row < end; ++row) work(row);
        }
        team_.barrier();
    }

    const TmStack& stack_;
    const TmStep& step_;
    Team& team_;
    const int thread_;
    const Workspace<T> work_;
    // The rows in flight: those of all tokens, and behind the last attention only the wanted ones.
    int64_t count_;
    float* residual_;
    bool only_wanted_ = false;
    Stopwatch watch_;
};

template <typename T>
void pack(const T* weight, int64_t outputs, int64_t inputs, T* panels, int64_t first,
          int64_t step) {
    constexpr int64_t kPairs = sizeof(T) == 2 ? 2 : 1;
    for (int64_t top = 0; top < outputs; top += kPanel) {
        T* panel = panels + (first + top / kPanel * step) * panel_elements(inputs);
        for (int64_t k = 0; k < inputs; k += kPairs) {
            for (int64_t lane = 0; lane < kPanel; ++lane) {
                for (int64_t i = 0; i < kPairs; ++i) {
                    const bool exists = top + lane < outputs;
                    *panel++ = exists ? weight[(top + lane) * inputs + k + i] : T{};
                }
            }
        }
    }
}

}  // namespace

int32_t tm_start() { return request_tiles() ? 0 : 1; }

void tm_pack(const void* weight, int64_t outputs, int64_t inputs, int32_t dtype, void* panels,
             int64_t first, int64_t step) {
    if (dtype == TM_BFLOAT16) {
        pack(static_cast<const bf16*>(weight), outputs, inputs, static_cast<bf16*>(panels), first,
             step);
    } else {
        pack(static_cast<const float*>(weight), outputs, inputs, static_cast<float*>(panels), first,
             step);
    }
}

int64_t tm_workspace_bytes(const TmStack* stack, int64_t num_tokens, int64_t num_rows,
                           int32_t num_threads) {
    return stack->dtype == TM_BFLOAT16
               ? Workspace<bf16>(*stack, num_tokens, num_rows, num_threads, nullptr).bytes
               : Workspace<float>(*stack, num_tokens, num_rows, num_threads, nullptr).bytes;
}

void tm_run_step(const TmStack* stack, const TmStep* step) {
    run_team(step->num_threads, [&](Team& team, int thread) {
        configure_tiles();
        if (stack->dtype == TM_BFLOAT16) {
            Walk<bf16>(*stack, *step, team, thread).run();
        } else {
            Walk<float>(*stack, *step, team, thread).run();
        }
        release_tiles();
    });
}

namespace {

template <typename T>
void product_of(const T* source, int64_t m, const TmMatrix& weight, float* out, int threads) {
    // Bands are read as a whole, up to the next multiple of 32 rows.
    const bool in_bands = uses_bands<T>(weight);
    std::vector<T> space(in_bands ? padded(m) * weight.inputs : 0);
    // Without bands the rows are only read.
    const Rows<T> rows = {in_bands ? space.data() : const_cast<T*>(source), weight.inputs, in_bands};
    for (int64_t row = 0; row < m && in_bands; ++row) {
        copy_row(source + row * weight.inputs, weight.inputs, rows.row(row));
    }
    const bool is_int8 = weight.format == TM_INT8;
    std::vector<int8_t> rounded(is_int8 ? padded(m) * int8_stride(weight.inputs) : 0);
    std::vector<float> scales(is_int8 ? m : 0);
    const Int8Rows int8 = {rounded.data(), scales.data()};
    run_team(threads, [&](Team& team, int) {
        configure_tiles();
        any_product(rows, m, weight, int8, team,
                [&](int64_t row, int64_t column, int64_t columns, const float* sums) {
                    float* target = out + row * weight.outputs + column;
                    for (int64_t i = 0; i < columns; ++i) {
                        target[i] = sums[i] + (weight.bias ? weight.bias[column + i] : 0.0f);
                    }
                });
        release_tiles();
    });
}

}  // namespace

void tm_product(const void* rows, int64_t m, int32_t dtype, const TmMatrix* weight, float* out,
                int32_t num_threads) {
    if (dtype == TM_BFLOAT16) {
        product_of(static_cast<const bf16*>(rows), m, *weight, out, num_threads);
    } else {
        product_of(static_cast<const float*>(rows), m, *weight, out, num_threads);
    }
}
