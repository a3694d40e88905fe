"""Tokenmill's inference engine: paged KV cache, continuous batching, one door.

Table of contents, from the door down; an upper module may import a lower one, never back:

    llm_engine       LLMEngine: add_request, step, abort, stats. The only door.
    scheduler        which request computes how many tokens in a step; preemption (no torch)
    model_runner     one step on the device: packed inputs, forward, sampling
    tokenizer        text to ids and back, chat templates (no torch)
    block_manager    KV blocks: lazy allocation, reference counts, prefix cache (no torch)
    models           loading through transformers, and the probe that decides whether to trust it
    kv_cache         how many blocks the device's memory holds
    sampler          greedy and seeded sampling, invariant to batching
    detokenizer      incremental text and stop strings
    attention        the backend protocol and the plain torch reference
    pooler           hidden states of a step's chunks as vectors
    outputs          what leaves the engine: results, metrics, statistics
    request          one sequence on its way through the engine
    pooling          one vector for a whole prompt, grown chunk by chunk (no torch)
    sampling_params  what a caller may ask of one request
    config           what an operator may set
    errors           EngineError and its kinds

The package itself imports nothing, so that torch-free parts stay cheap to import.
"""
