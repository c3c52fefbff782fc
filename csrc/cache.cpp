#include "cache.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "half.h"

namespace forerun {

Cache::Cache(int layers, int heads, int dim, int num_slots, int max_len, bool half)
    : num_layers(layers),
      num_heads(heads),
      head_dim(dim),
      is_half(half),
      max_len_(max_len),
      capacity_((max_len + kChunk - 1) / kChunk * kChunk),
      lengths_(static_cast<std::size_t>(num_slots), 0) {
    const std::size_t count = static_cast<std::size_t>(layers) *
                              static_cast<std::size_t>(num_slots) * static_cast<std::size_t>(heads);
    keys_ = Buffer(count * head_nbytes());
    values_ = Buffer(count * head_nbytes());
}

std::size_t Cache::head_nbytes() const {
    return static_cast<std::size_t>(capacity_) * static_cast<std::size_t>(head_dim) *
           (is_half ? 2 : 4);
}

KvHead Cache::head(int layer, int slot, int head) const {
    const std::size_t index =
        (static_cast<std::size_t>(layer) * lengths_.size() + static_cast<std::size_t>(slot)) *
            static_cast<std::size_t>(num_heads) +
        static_cast<std::size_t>(head);
    return {keys_.as<std::uint8_t>() + index * head_nbytes(),
            values_.as<std::uint8_t>() + index * head_nbytes(), is_half, head_dim};
}

namespace {

template <class T>
T* key_at(const void* keys, int head_dim, int row, int e) {
    return static_cast<T*>(const_cast<void*>(keys)) +
           (static_cast<std::size_t>(row / kTile) * head_dim + e) * kTile + row % kTile;
}

template <class T>
void copy_row(const KvHead& from, int row, const KvHead& into, int to) {
    const int dim = from.head_dim;
    for (int e = 0; e < dim; ++e)
        *key_at<T>(into.keys, dim, to, e) = *key_at<T>(from.keys, dim, row, e);
    const std::size_t size = static_cast<std::size_t>(dim) * sizeof(T);
    std::memmove(
        static_cast<char*>(const_cast<void*>(into.values)) + static_cast<std::size_t>(to) * size,
        static_cast<const char*>(from.values) + static_cast<std::size_t>(row) * size, size);
}

}  // namespace

void Cache::move_row(int source, int from, int target, int to) {
    for (int layer = 0; layer < num_layers; ++layer) {
        for (int h = 0; h < num_heads; ++h) {
            if (is_half)
                copy_row<std::uint16_t>(head(layer, source, h), from, head(layer, target, h), to);
            else
                copy_row<float>(head(layer, source, h), from, head(layer, target, h), to);
        }
    }
}

void Cache::keep(int slot, std::span<const int> path) {
    int& length = lengths_.at(static_cast<std::size_t>(slot));
    for (std::size_t i = 0; i < path.size(); ++i)
        if (path[i] < static_cast<int>(i) || (i > 0 && path[i] <= path[i - 1]) ||
            path[i] >= max_len_ - length)
            throw std::invalid_argument("a path to keep must ascend and stay within the cache");
    for (std::size_t i = 0; i < path.size(); ++i)
        if (path[i] != static_cast<int>(i))
            move_row(slot, length + path[i], slot, length + static_cast<int>(i));
    length += static_cast<int>(path.size());
}

void Cache::truncate(int slot, int length) {
    int& current = lengths_.at(static_cast<std::size_t>(slot));
    if (length < 0 || length > current) throw std::invalid_argument("truncate can only shorten");
    current = length;
}

void Cache::copy(int source, int target, int length) {
    if (length < 0 || length > lengths_.at(static_cast<std::size_t>(source)))
        throw std::invalid_argument("copy of more rows than there are");
    int& copied = lengths_.at(static_cast<std::size_t>(target));
    if (source != target)
        for (int row = 0; row < length; ++row) move_row(source, row, target, row);
    copied = length;
}

void Cache::read(int layer, int slot, int h, int row, float* k, float* v) const {
    const KvHead kv = head(layer, slot, h);
    for (int e = 0; e < head_dim; ++e) {
        const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(head_dim) +
                               static_cast<std::size_t>(e);
        k[e] = is_half ? half_to_float(*key_at<std::uint16_t>(kv.keys, head_dim, row, e))
                       : *key_at<float>(kv.keys, head_dim, row, e);
        v[e] = is_half ? half_to_float(static_cast<const std::uint16_t*>(kv.values)[at])
                       : static_cast<const float*>(kv.values)[at];
    }
}

void Cache::write(int layer, int slot, int h, int row, const float* k, const float* v) {
    const KvHead kv = head(layer, slot, h);
    for (int e = 0; e < head_dim; ++e) {
        const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(head_dim) +
                               static_cast<std::size_t>(e);
        if (is_half) {
            *key_at<std::uint16_t>(kv.keys, head_dim, row, e) = float_to_half(k[e]);
            static_cast<std::uint16_t*>(const_cast<void*>(kv.values))[at] = float_to_half(v[e]);
        } else {
            *key_at<float>(kv.keys, head_dim, row, e) = k[e];
            static_cast<float*>(const_cast<void*>(kv.values))[at] = v[e];
        }
    }
}

}  // namespace forerun
