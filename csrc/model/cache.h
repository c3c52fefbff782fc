// Keys and values of some sequences, in blocks of 64 rows. A slot's table says which blocks hold its
// rows, and sequences may share them; whoever uses the cache fills the tables, and knows how many
// rows of a slot are in use. Beside them lie the states of recurrent layers.

#pragma once

#include <cstdint>
#include <vector>

#include "model/memory.h"
#include "model/states.h"
#include "model/types.h"

namespace forerun {

// kv heads of a layer, and the widths of their keys and values, 0: as wide; none if it reads another layer's. Values
// that are less wide are the first numbers of their keys.
struct KvShape {
    int num_heads = 0, head_dim = 0, value_dim = 0;
    bool operator==(const KvShape&) const = default;
};

class Cache {
    std::vector<KvPage> pages_;         // of a head of each layer
    std::vector<std::size_t> offsets_;  // of its first page in a block

  public:
    // `num_blocks` 0: as many as all slots can fill, each slot with its own; else the tables are
    // empty. `recurrent` layers, as many as `layers` or none, have `num_states` states, and room for
    // `draft_rows` rows of a slot behind a chunk. Throws std::invalid_argument.
    Cache(std::vector<KvShape> layers, int num_slots, int max_len, KvForms forms, int num_blocks = 0,
          std::vector<MixerShape> recurrent = {}, int num_states = 0, int draft_rows = kChunk);

    std::size_t nbytes() const { return memory_.nbytes() + states.nbytes(); }

    // Makes a block the one at `index` of a slot's table. Throws std::invalid_argument, like the
    // next four, for a slot or a block that the cache has not.
    void place(int slot, int index, int block);
    void check_slot(int slot) const;
    // Rows start, start + 1, ... of a slot become what `rows` are: ascending and no lower.
    void move(int slot, const std::vector<int>& rows, int start);
    void copy_block(int source, int target);
    // Throws std::invalid_argument for a block that the cache has not.
    std::uint8_t* block_bytes(int block) const;
    int blocks_per_slot() const { return (max_len + kChunk - 1) / kChunk; }
    // Whether the first `rows` rows of a slot have their blocks.
    bool has_rows(int slot, int rows) const;

    KvHead head(int layer, int slot, int head) const;
    const Buffer& memory() const { return memory_; }  // (blocks, layers, heads): a page each
    bool has_codes() const { return pages_.front().has_codes(); }

    const std::vector<KvShape> layers;
    const int num_slots, max_len;
    States states;
    const std::size_t block_nbytes;

  private:
    std::size_t lay_out(KvForms forms);  // returns the bytes of a block
    int num_blocks_;
    std::vector<std::int32_t> tables_;  // (slots, blocks per slot); -1: none
    Buffer memory_;
};

}  // namespace forerun
