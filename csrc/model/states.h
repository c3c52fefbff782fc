// Recurrent states, and the rows of each slot that have come since its state.
//
// A state is that of all recurrent layers after some rows, a multiple of 64: of each head a matrix, and
// what was convolved of the last rows before. Beside it lie a slot's rows behind those: what is
// convolved of them, keys, changes and decays (recurrence.h), of kChunk rows and a draft's. No pass
// writes a state; `advance` does, a chunk at a time. Whoever uses them knows which state is whose.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/memory.h"
#include "model/recurrence.h"
#include "model/types.h"

namespace forerun {

class Runtime;

// Throws std::invalid_argument for sizes that the kernels cannot have.
void check_sizes(const MixerShape& shape);

// One layer's state: heads (heads, key dim, value dim), and what was convolved of the taps - 1 rows
// before (taps - 1, channels).
struct LayerState {
    float *heads, *history;
};

// One layer's rows of a slot, from the first behind its state on.
struct LayerRows {
    float* raw;      // (rows, channels), what is convolved
    float* keys;     // (key heads, rows / 16, key dim, 16)
    float* changes;  // (heads, rows, value dim)
    float* decays;   // (heads, rows)
};

class States {
    struct Offsets {  // of a layer: in floats, in a state and in a slot's rows
        std::size_t heads = 0, history = 0, raw = 0, keys = 0, changes = 0, decays = 0;
    };
    std::vector<Offsets> offsets_;
    std::vector<std::pair<int, int>> heads_;  // (layer, head) of all that have a matrix

  public:
    // Of layers, some of which have none. Throws std::invalid_argument.
    States(std::vector<MixerShape> layers, int num_slots, int num_states, int draft_rows);

    bool exist() const { return state_nbytes > 0; }
    std::size_t nbytes() const { return states_.nbytes() + rows_.nbytes(); }

    // A slot's state, and the rows before it. These throw std::invalid_argument for a state that there
    // is not; slots are checked by the cache.
    void place(int slot, int state, int rows);
    void clear(int state);
    void copy(int source, int target);
    // Gives the memory of a state back to the system: it is one of zeros.
    void drop(int state);

    bool is_placed(int slot) const { return state_of_[slot] >= 0; }
    // Rows before a slot's state.
    int rows_before(int slot) const { return rows_before_[slot]; }
    // Brings a slot's state to the last multiple of 64 that is no more than `rows`, which is at most
    // one chunk on; the rows behind it come to lie beside it.
    void advance(Runtime& runtime, int slot, int rows);
    // Rows start, start + 1, ... of a slot become what `rows` are: ascending and no lower.
    void move(int slot, const std::vector<int>& rows, int start);
    // Throws std::out_of_range if there is no room for a slot's first `rows` rows.
    void check_room(int slot, int rows) const;
    // A pass leaves rows of a slot up to this one.
    void note_rows(int slot, int rows) { rows_used_[slot] = rows; }

    LayerState state(int layer, int slot) const { return state_at(layer, state_of_[slot]); }
    LayerRows rows(int layer, int slot) const;
    std::uint8_t* state_bytes(int state) const;

    const std::vector<MixerShape> layers;
    const int num_states, draft_rows, num_rows;  // num_rows: of a slot, in whole blocks of keys
    const std::size_t state_nbytes, rows_nbytes;

  private:
    std::size_t lay_out_states();
    std::size_t lay_out_rows();
    void check_state(int state) const;
    LayerState state_at(int layer, int state) const;
    void advance_head(const Kernels& kernels, int slot, int unit);
    void shift_rows(int layer, int slot, int count);

    std::vector<int> state_of_, rows_before_, rows_used_;  // by slot; -1: no state
    Buffer states_, rows_;
    bool has_small_pages_ = false;  // once a state was dropped
};

}  // namespace forerun
