// Keys and values of some sequences, in pages of 64 rows. A slot's table says which pages hold its
// rows; whoever uses the cache knows how many rows of a slot are in use.

#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "types.h"

namespace forerun {

class Cache {
  public:
    // `pages`: the ids of all slots' pages in order, every page once; ascending if there are none.
    // Throws std::invalid_argument.
    Cache(int num_layers, int num_heads, int head_dim, int num_slots, int max_len, bool is_half,
          std::vector<std::int32_t> pages);

    std::size_t nbytes() const { return keys_.nbytes() + values_.nbytes(); }

    // Throws std::invalid_argument for a slot that the cache has not; so do the next two.
    void check_slot(int slot) const;
    // Rows start, start + 1, ... of a slot become what `rows` are: ascending and no lower.
    void move(int slot, const std::vector<int>& rows, int start);
    // The first `length` rows of `target` become those of `source`.
    void copy(int source, int target, int length);

    KvHead head(int layer, int slot, int head) const;
    const Buffer& keys() const { return keys_; }      // (layers, heads, pages, 4, E, 16)
    const Buffer& values() const { return values_; }  // (layers, heads, pages, 64, E)

    const int num_layers, num_heads, head_dim, num_slots, max_len;
    const bool is_half;

  private:
    int pages_per_slot() const { return (max_len + kChunk - 1) / kChunk; }
    std::size_t page_nbytes() const;  // of one head's keys or values

    std::vector<std::int32_t> pages_;  // (slots, pages per slot)
    Buffer keys_, values_;
};

}  // namespace forerun
