// Blocks that several sequences with few queries have in common, found by their block tables alone.
#pragma once

#include <vector>

#include "attention.h"

// Up to so many queries of a sequence are each attended as a single one is, with the same sums, while
// a block of its keys is in the nearest cache: a token and the guesses behind it. With more they are
// a chunk of a prompt.
constexpr int32_t kFewQueries = 8;

// Keys start .. end that some sequences share, block by block.
struct SharedKeys {
    std::vector<int32_t> sequences;
    int32_t start, end;
};

// What is worth attending as one product with all the sequences' queries. Whole blocks only, none of
// which is written in this step; of each sequence the ranges follow each other from its first key on.
std::vector<SharedKeys> find_shared_keys(const TmBatch& batch);
