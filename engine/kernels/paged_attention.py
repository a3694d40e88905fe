"""Paged attention in Triton: one kernel for prefill, decode and mixed batches, and its reduction.

A program takes a tile of one sequence's queries together with all query heads that share a kv
head, so that each key is read once for the whole group. Keys are visited in tiles with a running
maximum and sum (Dao et al., FlashAttention-2, 2023). With few programs the keys are also split
over programs, and `merge_splits` joins the parts by their log-sum-exp (Flash-Decoding, 2023).

Pools are [blocks, kv heads, block size, dim]: the keys of a head in a block lie side by side.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def paged_attention(
    out_ptr,  # [tokens, heads, VALUE_DIM]; with SPLITS > 1 fp32 [tokens, heads, SPLITS, VALUE_DIM]
    lse_ptr,  # fp32 [tokens, heads, SPLITS], base 2; unused with SPLITS == 1
    query_ptr,  # [tokens, heads, KEY_DIM]; it and the output begin at first_token of the batch
    first_token,
    keys_ptr,
    values_ptr,
    tables_ptr,  # int32 [sequences, table_stride]
    starts_ptr,  # int32 [sequences]: first token in the batch
    query_lens_ptr,  # int32 [sequences]
    context_lens_ptr,  # int32 [sequences]
    tile_sequences_ptr,  # int32 [tiles]: the sequence of each tile of queries
    tile_queries_ptr,  # int32 [tiles]: its first query in the sequence
    sinks_ptr,  # [heads]: scores beside those of the keys; unused without HAS_SINKS
    scale,
    softcap,
    window,
    query_stride_token,
    query_stride_head,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a kv head
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr,  # a power of two, at least 16
    VALUE_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,  # rows of a tile, a row being one query of one head
    TILE_KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    TILE_QUERIES: tl.constexpr = TILE_ROWS // GROUP
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(tile_sequences_ptr + tile)
    first_query = tl.load(tile_queries_ptr + tile)
    start = tl.load(starts_ptr + sequence)
    query_len = tl.load(query_lens_ptr + sequence)
    context_len = tl.load(context_lens_ptr + sequence)

    rows = tl.arange(0, TILE_ROWS)
    query = first_query + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    has_row = (rows < TILE_QUERIES * GROUP) & (query < query_len)
    position = context_len - query_len + query
    token = (start - first_token + query).to(tl.int64)
    key_dims = tl.arange(0, KEY_PAD)
    value_dims = tl.arange(0, VALUE_PAD)
    q = tl.load(
        query_ptr
        + token[:, None] * query_stride_token
        + head[:, None] * query_stride_head
        + key_dims[None, :],
        mask=has_row[:, None] & (key_dims < KEY_DIM)[None, :],
        other=0.0,
    )

    # The keys that some query of the tile sees, cut into whole tiles and dealt to the splits.
    first_position = context_len - query_len + first_query
    last_position = tl.minimum(first_position + TILE_QUERIES, context_len) - 1
    first_tile = 0
    if HAS_WINDOW:
        first_tile = tl.maximum(first_position - window + 1, 0) // TILE_KEYS
    end_tile = last_position // TILE_KEYS + 1
    if SPLITS > 1:
        share = tl.cdiv(end_tile - first_tile, SPLITS)
        first_tile += split * share
        end_tile = tl.minimum(end_tile, first_tile + share)

    maximum = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    if HAS_SINKS:
        # A sink takes its share of the softmax once, and gives no value.
        sinks = tl.load(sinks_ptr + head, mask=has_row, other=0.0).to(tl.float32) * LOG2_E
        maximum = tl.where(split == 0, sinks, maximum)
        total = tl.where(split == 0, 1.0, total)
    sums = tl.zeros([TILE_ROWS, VALUE_PAD], tl.float32)
    offsets = tl.arange(0, TILE_KEYS)
    for key_tile in range(first_tile, end_tile):
        key_position = key_tile * TILE_KEYS + offsets
        # Slots behind the context may hold anything: they are not read, values included.
        exists = key_position < context_len
        block = tl.load(
            tables_ptr + sequence * table_stride + key_position // BLOCK_SIZE, mask=exists, other=0
        ).to(tl.int64)
        slot = (block * KV_HEADS + kv_head) * BLOCK_SIZE + key_position % BLOCK_SIZE
        k = tl.load(
            keys_ptr + slot[None, :] * KEY_DIM + key_dims[:, None],
            mask=exists[None, :] & (key_dims < KEY_DIM)[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        if HAS_SOFTCAP:
            # tanh by an exponential, which is 1 to every bit long before the exponential overflows.
            doubled = tl.minimum(scores * (2 * LOG2_E) / softcap, 64.0)
            scores = softcap * (1 - 2 / (tl.exp2(doubled) + 1))
        sees = exists[None, :] & (key_position[None, :] <= position[:, None])
        if HAS_WINDOW:
            sees = sees & (key_position[None, :] > position[:, None] - window)
        scores = tl.where(sees, scores * LOG2_E, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        # A row that has seen nothing yet would compute infinity minus infinity.
        base = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(maximum - base)
        v = tl.load(
            values_ptr + slot[:, None] * VALUE_DIM + value_dims[None, :],
            mask=exists[:, None] & (value_dims < VALUE_DIM)[None, :],
            other=0.0,
        )
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None]
        sums = tl.dot(weights.to(v.dtype), v, sums, input_precision=PRECISION)
        maximum = new_maximum

    # A split may have seen no key; its maximum is minus infinity and its sums are zero.
    total = tl.where(total == 0.0, 1.0, total)
    row = token * (KV_HEADS * GROUP) + head
    if SPLITS > 1:
        row = row * SPLITS + split
        tl.store(lse_ptr + row, maximum + tl.log2(total), mask=has_row)
    sums = sums / total[:, None]
    tl.store(
        out_ptr + row[:, None] * VALUE_DIM + value_dims[None, :],
        sums.to(out_ptr.dtype.element_ty),
        mask=has_row[:, None] & (value_dims < VALUE_DIM)[None, :],
    )


@triton.jit
def merge_splits(
    out_ptr,  # [rows, VALUE_DIM], a row being one query of one head
    parts_ptr,  # fp32 [rows, SPLITS, VALUE_DIM]
    lse_ptr,  # fp32 [rows, SPLITS], base 2; minus infinity where the split saw no key
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, VALUE_PAD)
    splits = tl.arange(0, SPLITS)
    lse = tl.load(lse_ptr + row * SPLITS + splits)
    # Some split saw a key, the query's own, so the maximum is finite.
    weights = tl.exp2(lse - tl.max(lse, 0))
    parts = tl.load(
        parts_ptr + (row * SPLITS + splits)[:, None] * VALUE_DIM + dims[None, :],
        mask=(dims < VALUE_DIM)[None, :],
        other=0.0,
    )
    merged = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(
        out_ptr + row * VALUE_DIM + dims, merged.to(out_ptr.dtype.element_ty), mask=dims < VALUE_DIM
    )
