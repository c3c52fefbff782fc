#include "cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

namespace forerun {

namespace {

void need(bool holds, const char* message) {
    if (!holds) throw std::invalid_argument(message);
}

template <class T>
void move_row(const KvHead& head, int from, int to) {
    const std::size_t dim = head.head_dim, source = from % kChunk, target = to % kChunk;
    const T* from_keys = head.keys<T>(from / kChunk) + source / kTile * kTile * dim;
    T* to_keys = head.keys<T>(to / kChunk) + target / kTile * kTile * dim;
    for (std::size_t e = 0; e < dim; ++e)
        to_keys[e * kTile + target % kTile] = from_keys[e * kTile + source % kTile];
    std::copy_n(head.values<T>(from / kChunk) + source * dim, dim,
                head.values<T>(to / kChunk) + target * dim);
}

}  // namespace

Cache::Cache(int layers, int heads, int dim, int slots, int most, bool half, int blocks)
    : num_layers(layers),
      num_heads(heads),
      head_dim(dim),
      num_slots(slots),
      max_len(most),
      is_half(half),
      page_nbytes(std::size_t{2} * kChunk * dim * (half ? 2 : 4)),
      block_nbytes(page_nbytes * layers * heads),
      num_blocks_(blocks) {
    need(std::min({layers, heads, dim, slots, most}) > 0, "a cache's dimensions must be positive");
    need(dim % kTile == 0, "head size must be a multiple of 16");
    const double rows = slots * (most + double{kChunk}),
                 per_row = (half ? 4.0 : 8.0) * layers * heads * dim;
    need(rows < 0x1p31 && blocks >= 0 && per_row * std::max(rows, blocks * double{kChunk}) < 1e15,
         "the cache would be absurdly large");
    tables_.assign(static_cast<std::size_t>(num_slots) * blocks_per_slot(), -1);
    if (num_blocks_ == 0) {
        num_blocks_ = static_cast<int>(tables_.size());
        std::iota(tables_.begin(), tables_.end(), 0);
    }
    memory_ = Buffer(num_blocks_ * block_nbytes);
}

KvHead Cache::head(int layer, int slot, int head) const {
    const std::size_t page = static_cast<std::size_t>(layer * num_heads + head);
    return {memory_.as<std::uint8_t>() + page * page_nbytes, block_nbytes,
            tables_.data() + static_cast<std::size_t>(slot) * blocks_per_slot(), is_half, head_dim};
}

void Cache::check_slot(int slot) const {
    if (slot < 0 || slot >= num_slots)
        throw std::invalid_argument("no cache slot " + std::to_string(slot));
}

bool Cache::has_rows(int slot, int rows) const {
    const auto first = tables_.begin() + static_cast<std::ptrdiff_t>(slot) * blocks_per_slot();
    const int count = (rows + kChunk - 1) / kChunk;
    return rows <= max_len && std::find(first, first + count, -1) == first + count;
}

void Cache::place(int slot, int index, int block) {
    check_slot(slot);
    need(index >= 0 && index < blocks_per_slot() && block >= 0 && block < num_blocks_,
         "no such cache block");
    tables_[static_cast<std::size_t>(slot) * blocks_per_slot() + index] = block;
}

void Cache::move(int slot, const std::vector<int>& rows, int start) {
    check_slot(slot);
    for (int to = start; int row : rows)
        need(to >= 0 && row >= to++ && has_rows(slot, row + 1), "rows can only move down");
    const auto move_one = is_half ? move_row<std::uint16_t> : move_row<float>;
    for (int layer = 0; layer < num_layers; ++layer)
        for (int h = 0; h < num_heads; ++h)
            for (std::size_t i = 0; i < rows.size(); ++i)
                move_one(head(layer, slot, h), rows[i], start + static_cast<int>(i));
}

void Cache::copy_block(int source, int target) {
    for (int block : {source, target})
        need(block >= 0 && block < num_blocks_, "no such cache block");
    std::uint8_t* memory = memory_.as<std::uint8_t>();
    if (source != target)
        std::memcpy(memory + target * block_nbytes, memory + source * block_nbytes, block_nbytes);
}

}  // namespace forerun
