// Keys and values of some sequences. Slots' rows beyond their length are scratch: written by a
// pass, committed by keep.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory.h"
#include "types.h"

namespace forerun {

class Cache {
  public:
    Cache(int num_layers, int num_heads, int head_dim, int num_slots, int max_len, bool is_half);

    int num_slots() const { return static_cast<int>(lengths_.size()); }
    int max_len() const { return max_len_; }
    int length(int slot) const { return lengths_[static_cast<std::size_t>(slot)]; }
    std::size_t nbytes() const { return keys_.nbytes() + values_.nbytes(); }

    // Commits scratch rows `path` (ascending, counted from the length) in order.
    void keep(int slot, std::span<const int> path);
    void truncate(int slot, int length);
    // The first `length` rows of `target` become those of `source`.
    void copy(int source, int target, int length);

    KvHead head(int layer, int slot, int head) const;
    // One row of one head as floats (E).
    void read(int layer, int slot, int head, int row, float* k, float* v) const;
    void write(int layer, int slot, int head, int row, const float* k, const float* v);

    const int num_layers, num_heads, head_dim;
    const bool is_half;

  private:
    void move_row(int source, int from, int target, int to);
    std::size_t head_nbytes() const;

    const int max_len_, capacity_;  // rows asked for, and rounded up to whole chunks
    std::vector<int> lengths_;
    Buffer keys_, values_;
};

}  // namespace forerun
