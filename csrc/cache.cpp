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
    const std::size_t dim = head.head_dim, source = head.row(from), target = head.row(to);
    T *keys = static_cast<T*>(head.keys), *values = static_cast<T*>(head.values);
    for (std::size_t e = 0; e < dim; ++e)
        keys[(target / kTile * dim + e) * kTile + target % kTile] =
            keys[(source / kTile * dim + e) * kTile + source % kTile];
    std::copy_n(values + source * dim, dim, values + target * dim);
}

}  // namespace

Cache::Cache(int layers, int heads, int dim, int slots, int most, bool half,
             std::vector<std::int32_t> pages)
    : num_layers(layers),
      num_heads(heads),
      head_dim(dim),
      num_slots(slots),
      max_len(most),
      is_half(half),
      pages_(std::move(pages)) {
    need(std::min({layers, heads, dim, slots, most}) > 0, "a cache's dimensions must be positive");
    need(dim % kTile == 0, "head size must be a multiple of 16");
    const double rows = slots * (most + double{kChunk});
    need(rows < 0x1p31 && (half ? 4.0 : 8.0) * layers * heads * dim * rows < 1e15,
         "the cache would be absurdly large");
    const std::size_t num_pages = static_cast<std::size_t>(num_slots * pages_per_slot());
    std::vector<std::int32_t> ascending(num_pages);
    std::iota(ascending.begin(), ascending.end(), 0);
    if (pages_.empty()) pages_ = ascending;
    std::vector<std::int32_t> sorted = pages_;
    std::sort(sorted.begin(), sorted.end());
    need(sorted == ascending, "a page table must name each page once");
    const std::size_t nbytes = std::size_t(num_layers) * num_heads * num_pages * page_nbytes();
    keys_ = Buffer(nbytes);
    values_ = Buffer(nbytes);
}

std::size_t Cache::page_nbytes() const {
    return static_cast<std::size_t>(kChunk * head_dim) * (is_half ? 2 : 4);
}

KvHead Cache::head(int layer, int slot, int head) const {
    const std::size_t at =
        static_cast<std::size_t>(layer * num_heads + head) * pages_.size() * page_nbytes();
    return {keys_.as<std::uint8_t>() + at, values_.as<std::uint8_t>() + at,
            pages_.data() + slot * pages_per_slot(), is_half, head_dim};
}

void Cache::check_slot(int slot) const {
    if (slot < 0 || slot >= num_slots)
        throw std::invalid_argument("no cache slot " + std::to_string(slot));
}

void Cache::move(int slot, const std::vector<int>& rows, int start) {
    check_slot(slot);
    for (int to = start; int row : rows)
        need(to >= 0 && row >= to++ && row < max_len, "rows can only move down");
    const auto move_one = is_half ? move_row<std::uint16_t> : move_row<float>;
    for (int layer = 0; layer < num_layers; ++layer)
        for (int h = 0; h < num_heads; ++h)
            for (std::size_t i = 0; i < rows.size(); ++i)
                move_one(head(layer, slot, h), rows[i], start + static_cast<int>(i));
}

void Cache::copy(int source, int target, int length) {
    check_slot(source);
    check_slot(target);
    need(source != target && length <= max_len, "the rows do not fit the cache");
    const std::size_t nbytes = page_nbytes();
    const auto copy_page = [&](const void* from, std::size_t page, void* to, std::size_t to_page) {
        std::memcpy(static_cast<char*>(to) + to_page * nbytes,
                    static_cast<const char*>(from) + page * nbytes, nbytes);
    };
    for (int layer = 0; layer < num_layers; ++layer)
        for (int h = 0; h < num_heads; ++h) {
            const KvHead from = head(layer, source, h), to = head(layer, target, h);
            for (int i = 0; i * kChunk < length; ++i) {
                copy_page(from.keys, from.pages[i], to.keys, to.pages[i]);
                copy_page(from.values, from.pages[i], to.values, to.pages[i]);
            }
        }
}

}  // namespace forerun
