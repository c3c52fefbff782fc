#include "cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace forerun {

Cache::Cache(int layers, int heads, int dim, int slots, int most, bool half,
             std::vector<std::int32_t> pages)
    : num_layers(layers),
      num_heads(heads),
      head_dim(dim),
      num_slots(slots),
      max_len(most),
      is_half(half),
      pages_(std::move(pages)) {
    const std::size_t num_pages = static_cast<std::size_t>(num_slots * pages_per_slot());
    if (pages_.empty()) {
        pages_.resize(num_pages);
        std::iota(pages_.begin(), pages_.end(), 0);
    }
    std::vector<bool> is_used(num_pages, false);
    for (std::int32_t page : pages_) {
        const std::size_t p = static_cast<std::size_t>(page);
        if (page < 0 || p >= num_pages || is_used[p] || pages_.size() != num_pages)
            throw std::invalid_argument("a page table must name each page once");
        is_used[p] = true;
    }
    const std::size_t nbytes = static_cast<std::size_t>(num_layers) *
                               static_cast<std::size_t>(num_heads) * num_pages * page_nbytes();
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

namespace {

template <class T>
void move_row(const KvHead& head, int from, int to) {
    const std::size_t dim = static_cast<std::size_t>(head.head_dim),
                      source = static_cast<std::size_t>(head.row(from)),
                      target = static_cast<std::size_t>(head.row(to));
    T *keys = static_cast<T*>(head.keys), *values = static_cast<T*>(head.values);
    for (std::size_t e = 0; e < dim; ++e)
        keys[(target / kTile * dim + e) * kTile + target % kTile] =
            keys[(source / kTile * dim + e) * kTile + source % kTile];
    std::copy_n(values + source * dim, dim, values + target * dim);
}

}  // namespace

void Cache::move(int slot, std::span<const int> rows, int start) {
    const auto move_one = is_half ? move_row<std::uint16_t> : move_row<float>;
    for (int layer = 0; layer < num_layers; ++layer)
        for (int h = 0; h < num_heads; ++h)
            for (std::size_t i = 0; i < rows.size(); ++i)
                move_one(head(layer, slot, h), rows[i], start + static_cast<int>(i));
}

void Cache::copy(int source, int target, int length) {
    const std::size_t nbytes = page_nbytes();
    const auto copy_page = [&](void* from, int page, void* to, int to_page) {
        std::memcpy(static_cast<char*>(to) + static_cast<std::size_t>(to_page) * nbytes,
                    static_cast<char*>(from) + static_cast<std::size_t>(page) * nbytes, nbytes);
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
