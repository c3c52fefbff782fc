// What a pass computes and how it is cut up: its segments, attention, chosen experts and recurrent rows.

#pragma once

#include <cstddef>
#include <vector>

#include "model/cache.h"
#include "model/types.h"

namespace forerun {

// The block of logits that the head holds aside.
inline constexpr int kHeadTiles = 8, kHeadRows = 64;
// Rows whose gate and up halves are held at a time, and tiles of what experts add to them.
inline constexpr int kRowBlock = 32, kAddedTiles = 4;

// What a thread reads of a phase's weights for a row in no less time than it costs that one more thread takes part.
inline constexpr std::size_t kThreadNbytes = 16 << 10;

// Rows of one sequence's tree, as core.batch.Segment.
struct Segment {
    int slot, base, first, stop;
    std::vector<int> tokens, parents;  // parents empty: a chain
};

// What rows of a pass begin with (R, D), and what q, k and v of the first layer read (R, attention width), if that is
// given.
struct Inputs {
    const float *states = nullptr, *attention = nullptr;
};

struct AttentionUnit {  // rows of one segment and query heads of one kv head that attend together
    int segment, query, num_queries, kv_head, head, num_heads, first_chunk, stop_chunk, first_task,
        stop_task;
};

struct AttentionTask {  // chunks of a unit that one thread works through
    int unit, first_chunk, stop_chunk;
};

// Layers that attend alike, and the plan of their attention in this pass.
struct AttentionKind {
    int window = 0;
    bool is_bidirectional = false;
    KvShape kv;
    std::vector<float> frequencies;
    float factor = 1.0f;

    std::vector<Query> queries;
    std::vector<AttentionUnit> units;
    std::vector<AttentionTask> tasks;
    int unit_pairs = 0;  // most of a unit
    bool is_split = false;
    std::vector<float> cos, sin;
    Rope rope;
};

// Rows of a pass by the experts that they chose. A pair is a row and one of its experts. Each has a
// slot: those of an expert lie side by side, rows ascending, from a multiple of kRowsAside on.
struct Routing {
    int* experts = nullptr;    // (R, num_active), ascending in a row
    float* weights = nullptr;  // (R, num_active)
    int* slots = nullptr;      // (R, num_active)
    int *rows = nullptr, *firsts = nullptr, *stops = nullptr;  // (slots), (experts), (experts)
    float* slot_weights = nullptr;                             // (slots)
    int* active = nullptr;  // experts with a pair, ascending
    int num_active = 0;
};

// A row and its place in its slot's rows since the state; its path among them, from the state's
// chunk on, and the border that it is behind, -1: none.
struct MixerRow {
    std::size_t path;
    int length, own, border;
};

struct MixerUnit {  // rows of one segment
    int segment, row, num_rows;
};

struct ChunkBorder {  // the end of a chunk in a segment's draft: the first 64 rows of a path
    int segment;
    std::size_t path;
};

}  // namespace forerun
