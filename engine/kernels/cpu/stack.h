// All layers of a decoder of Llama's shape in one call.
#pragma once

#include "attention.h"
#include "product.h"

extern "C" {

// One decoder layer. Norms are float32 whatever the dtype.
struct TmLayer {
    const float* input_norm;        // [hidden]
    const float* query_norm;        // [key_dim] of each head, or null
    const float* key_norm;          // [key_dim] of each head, or null
    const float* mlp_norm;          // [hidden]
    TmMatrix qkv;                   // queries of all heads, then keys, then values
    TmMatrix out;
    TmMatrix gate_up;               // panels of gate and up in turn
    TmMatrix down;
    TmAttentionShape attention;
};

struct TmStack {
    int32_t dtype;                  // TmDtype of weights and activations
    int32_t num_layers;
    int64_t hidden;
    int64_t intermediate;
    float epsilon;                  // of every norm
    int32_t rotary_dim;             // 0: no rotation
    const TmLayer* layers;
    const void* embedding;          // [vocab, hidden], row by row
    const float* final_norm;        // [hidden]
    TmMatrix head;                  // vocab outputs
};

// Where the time of a step went, in seconds of the first thread.
struct TmProfile {
    double products;
    double attention;
    double small;                   // embedding, norms
    double head;
};

struct TmStep {
    const TmAttentionPlan* plan;
    int64_t num_tokens;
    const int64_t* token_ids;       // [num_tokens]
    const float* cosine;            // [num_tokens, rotary_dim / 2]
    const float* sine;
    void* const* pools;             // [num_layers]
    int64_t num_rows;
    const int64_t* rows;            // [num_rows], the tokens whose outputs are wanted
    int64_t num_logits;             // of the first so many rows logits are wanted
    float* logits;                  // [num_logits, vocab]
    int64_t num_ids;                // tokens that may be taken: the first so many of the vocab
    int64_t* best;                  // [num_rows] the likeliest of them, the lowest among equals; or
    bool* finite;                   //            null; [num_rows] whether their logits all are
    float* hidden;                  // [num_tokens, hidden] behind the last norm, or null
    void* workspace;                // tm_workspace_bytes, 64 bytes aligned
    TmProfile* profile;             // added to
    int32_t num_threads;
};

// Once per process before anything else; 0 when this machine really runs the library's level.
int32_t tm_start();

// dst panels first, first + step, ... = a row-major weight [outputs, inputs]; tiles.h has the layout.
void tm_pack(const void* weight, int64_t outputs, int64_t inputs, int32_t dtype, void* panels,
             int64_t first, int64_t step);

int64_t tm_workspace_bytes(const TmStack* stack, int64_t num_tokens, int64_t num_rows,
                           int32_t num_threads);

void tm_run_step(const TmStack* stack, const TmStep* step);

// out [m, outputs] in float32 = rows [m, inputs] times the weight, plus bias.
void tm_product(const void* rows, int64_t m, int32_t dtype, const TmMatrix* weight, float* out,
                int32_t num_threads);
}
