#include "stack.h"

#include <cstring>
#include <vector>

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
          work_(stack, step.num_tokens, step.num_rows, static_cast<char*>(step.workspace)),
          count_(step.num_tokens),
          residual_(work_.residual),
          attended_(work_.attended),
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
        norm(layer.input_norm);
        project(layer);
        attend(layer, step_.pools[index]);
        const Widths widths(layer.attention);
        if (index == stack_.num_layers - 1 && step_.hidden == nullptr) {
            keep_wanted(widths.attended);
        }
        add_product(attended_, widths.attended, layer.out);
        norm(layer.mlp_norm);
        gate(layer.gate_up);
        add_product(work_.gated, stack_.intermediate, layer.down);
    }

    // Nobody reads the other tokens' outputs any more.
    void keep_wanted(int64_t width) {
        for_rows(step_.num_rows, [&](int64_t row) {
            const int64_t token = step_.rows[row], n = stack_.hidden;
            std::memcpy(work_.kept_residual + row * n, residual_ + token * n, n * sizeof(float));
            std::memcpy(work_.kept_attended + row * width, attended_ + token * width,
                        width * sizeof(T));
        });
        count_ = step_.num_rows;
        residual_ = work_.kept_residual;
        attended_ = work_.kept_attended;
        only_wanted_ = true;
    }

    void norm(const float* weight) {
        const int64_t n = stack_.hidden;
        for_rows(count_, [&](int64_t row) {
            rms_norm(residual_ + row * n, weight, n, stack_.epsilon, work_.normed + row * n);
        });
        watch_.add_to(step_.profile->small);
    }

    void project(const TmLayer& layer) {
        const int64_t width = layer.qkv.outputs;
        const float* bias = layer.qkv.bias;
        any_product(work_.normed, stack_.hidden, count_, layer.qkv, work_.int8, team_,
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
            rms_norm(heads + h * dim, weight, dim, stack_.epsilon, heads + h * dim);
        }
    }

    // residual += rows times weight
    void add_product(const T* rows, int64_t width, const TmMatrix& weight) {
        any_product(rows, width, count_, weight, work_.int8, team_,
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
    void gate(const TmMatrix& weight) {
        any_product(work_.normed, stack_.hidden, count_, weight, work_.int8, team_,
                [&](int64_t row, int64_t column, int64_t columns, const float* sums) {
                    T* out = work_.gated + row * stack_.intermediate + column / 2;
                    for (int64_t i = 0; i < columns; i += 2 * kLanes) {
                        Vec g = load(sums + i), u = load(sums + i + kLanes);
                        if (weight.bias != nullptr) {
                            g = g + load(weight.bias + column + i);
                            u = u + load(weight.bias + column + i + kLanes);
                        }
                        store(out + i / 2, silu(g) * u);
                    }
                });
        watch_.add_to(step_.profile->products);
    }

    void finish() {
        const int64_t n = stack_.hidden;
        if (step_.hidden != nullptr) {
            for_rows(count_, [&](int64_t row) { norm_last(row, step_.hidden + row * n); });
        }
        for_rows(step_.num_rows, [&](int64_t row) {
            norm_last(only_wanted_ ? row : step_.rows[row], work_.normed + row * n);
        });
        watch_.add_to(step_.profile->small);
        const TmMatrix& head = stack_.head;
        any_product(work_.normed, n, step_.num_rows, head, work_.int8, team_,
                [&](int64_t row, int64_t column, int64_t columns, const float* sums) {
                    float* out = step_.logits + row * head.outputs + column;
                    if (head.bias == nullptr) {
                        std::memcpy(out, sums, columns * sizeof(float));
                        return;
                    }
                    for (int64_t i = 0; i < columns; ++i) out[i] = sums[i] + head.bias[column + i];
                });
        watch_.add_to(step_.profile->head);
    }

    template <typename Out>
    void norm_last(int64_t row, Out* out) {
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
    T* attended_;
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

int64_t tm_workspace_bytes(const TmStack* stack, int64_t num_tokens, int64_t num_rows) {
    return stack->dtype == TM_BFLOAT16
               ? Workspace<bf16>(*stack, num_tokens, num_rows, nullptr).bytes
               : Workspace<float>(*stack, num_tokens, num_rows, nullptr).bytes;
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

void tm_product(const void* rows, int64_t m, int32_t dtype, const TmMatrix* weight, float* out,
                int32_t num_threads) {
    const auto finish = [&](int64_t row, int64_t column, int64_t columns, const float* sums) {
        float* target = out + row * weight->outputs + column;
        for (int64_t i = 0; i < columns; ++i) {
            target[i] = sums[i] + (weight->bias == nullptr ? 0.0f : weight->bias[column + i]);
        }
    };
    std::vector<int8_t> rounded(padded(m) * int8_stride(weight->inputs));
    std::vector<float> scales(m);
    const Int8Rows space = {rounded.data(), scales.data()};
    run_team(num_threads, [&](Team& team, int) {
        configure_tiles();
        const int64_t stride = weight->inputs;
        if (dtype == TM_BFLOAT16) {
            any_product(static_cast<const bf16*>(rows), stride, m, *weight, space, team, finish);
        } else {
            any_product(static_cast<const float*>(rows), stride, m, *weight, space, team, finish);
        }
        release_tiles();
    });
}
