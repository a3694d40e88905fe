// Paged attention of one layer over a packed batch. attention.cpp owns the layout of the KV pool.
#pragma once

#include <cstdint>

#include "team.h"

enum TmDtype : int32_t { TM_FLOAT32 = 0, TM_BFLOAT16 = 1 };
// What a pool holds: elements of the rows' dtype, or int8 with a scale per token and head.
enum TmPool : int32_t { TM_POOL_PLAIN = 0, TM_POOL_INT8 = 1 };

extern "C" {

// How sequences lie in the packed batch; engine/attention/backend.py, BatchLayout. Sequences with
// one query come first, by ascending context.
struct TmBatch {
    int64_t num_seqs;
    int64_t block_size;             // tokens per block
    int64_t table_stride;           // entries between the block tables of two sequences
    const int32_t* query_lens;      // [num_seqs], tokens of the sequence in this step
    const int32_t* context_lens;    // [num_seqs], its tokens after this step, queries included
    const int32_t* block_tables;    // [num_seqs, table_stride], enough blocks for context_lens
};

// One attention layer.
struct TmAttentionShape {
    int32_t dtype;                  // TmDtype of the rows
    int32_t num_heads;              // a multiple of num_kv_heads
    int32_t num_kv_heads;
    int32_t key_dim;
    int32_t value_dim;
    int32_t window;                 // newest keys a query sees, itself included; 0 is all
    float scale;                    // factor on the scores
    float softcap;                  // scores become softcap * tanh(score / softcap); 0 is off
    const float* sinks;             // [num_heads], scores that take a share and give nothing; or null
    int32_t pool;                   // TmPool
};

// The rows of one layer in one step. A row holds all heads side by side, [heads, dim]; strides are
// in elements between rows. Query and key are biased and normed.
struct TmAttentionRows {
    const void* query;
    const void* key;
    const void* value;
    void* out;                      // [tokens, num_heads, value_dim]
    int64_t query_stride;
    int64_t key_stride;
    int64_t value_stride;
    int64_t out_stride;
    // [tokens, rotary_dim / 2] in float32: the angles by which the first rotary_dim elements of each
    // query and key head are still to be rotated (element i with i + rotary_dim / 2). Null: the rows
    // are rotated already.
    const float* cosine;
    const float* sine;
    int64_t rotary_dim;
};

struct TmAttentionPlan;

// Bytes that one block of this layer takes in the pool, keys and values together.
int64_t tm_attention_block_bytes(const TmAttentionShape* shape, int64_t block_size);

// What can be prepared once for all layers of a step. The batch and what it points to must outlive
// the plan. Null when memory is out.
TmAttentionPlan* tm_attention_plan(const TmBatch* batch);
void tm_attention_plan_free(TmAttentionPlan* plan);

// Store the step's keys and values in the layer's pool (num_blocks * tm_attention_block_bytes, 64
// bytes aligned), then attend causally. Slots behind a sequence's context_lens are never read.
void tm_attention(const TmAttentionPlan* plan, const TmAttentionShape* shape,
                  const TmAttentionRows* rows, void* pool, int32_t num_threads);
}

// The same from inside a parallel region: every thread of the team calls it, after a barrier that
// made the rows complete; it returns after a barrier that makes `out` complete.
void attention_in_team(const TmAttentionPlan& plan, const TmAttentionShape& shape,
                       const TmAttentionRows& rows, void* pool, Team& team, int thread);
