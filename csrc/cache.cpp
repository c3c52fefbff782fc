#include "cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "half.h"

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

// Element e of a row's key; its value is head_dim elements in a row.
template <class T>
T* key_at(const KvHead& head, int row, int e) {
    const std::size_t at = static_cast<std::size_t>(head.row(row));
    return static_cast<T*>(head.keys) +
           (at / kTile * static_cast<std::size_t>(head.head_dim) + static_cast<std::size_t>(e)) *
               kTile +
           at % kTile;
}
template <class T>
T* value_at(const KvHead& head, int row) {
    return static_cast<T*>(head.values) +
           static_cast<std::size_t>(head.row(row)) * static_cast<std::size_t>(head.head_dim);
}

template <class T>
void move_row(const KvHead& head, int from, int to) {
    for (int e = 0; e < head.head_dim; ++e) *key_at<T>(head, to, e) = *key_at<T>(head, from, e);
    std::copy_n(value_at<T>(head, from), head.head_dim, value_at<T>(head, to));
}

float as_float(float x) { return x; }
float as_float(std::uint16_t x) { return half_to_float(x); }
void store(float x, float* to) { *to = x; }
void store(float x, std::uint16_t* to) { *to = float_to_half(x); }

template <class T>
void read_row(const KvHead& head, int row, float* k, float* v) {
    for (int e = 0; e < head.head_dim; ++e) {
        k[e] = as_float(*key_at<T>(head, row, e));
        v[e] = as_float(value_at<T>(head, row)[e]);
    }
}

template <class T>
void write_row(const KvHead& head, int row, const float* k, const float* v) {
    for (int e = 0; e < head.head_dim; ++e) {
        store(k[e], key_at<T>(head, row, e));
        store(v[e], value_at<T>(head, row) + e);
    }
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

void Cache::read(int layer, int slot, int h, int row, float* k, float* v) const {
    (is_half ? read_row<std::uint16_t> : read_row<float>)(head(layer, slot, h), row, k, v);
}

void Cache::write(int layer, int slot, int h, int row, const float* k, const float* v) {
    (is_half ? write_row<std::uint16_t> : write_row<float>)(head(layer, slot, h), row, k, v);
}

}  // namespace forerun
