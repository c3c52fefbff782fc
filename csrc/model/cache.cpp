#include "model/cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace forerun {

namespace {

void need(bool holds, const char* message) {
    if (!holds) throw std::invalid_argument(message);
}

// Copies a row's share of `count` runs of kTile or kChunk such shares, `stride` bytes apart.
void move_shares(std::uint8_t* from, std::uint8_t* to, int source, int target, std::size_t size,
                 std::size_t stride, int count) {
    for (int i = 0; i < count; ++i)
        std::memmove(to + i * stride + target * size, from + i * stride + source * size, size);
}

// Keys lie in blocks of 16 rows, whose numbers alternate: one by one if they are floats, 4 bytes of
// codes at a time. Values lie row after row; int8 ones in fours of rows, a byte of each in turn.
void move_row(const KvHead& head, int from, int to) {
    const KvPage& page = *head.page;
    const int dim = head.head_dim, value_dim = head.value_width(), source = from % kChunk, target = to % kChunk,
              old = from / kChunk, now = to / kChunk;
    using Byte = std::uint8_t;
    const auto keys = [&](std::size_t size, int count) {
        const std::size_t run = size * kTile, block = run * count;
        move_shares(head.keys<Byte>(old) + source / kTile * block,
                    head.keys<Byte>(now) + target / kTile * block, source % kTile, target % kTile,
                    size, run, count);
    };
    const auto values = [&](std::size_t size) {
        move_shares(head.values<Byte>(old), head.values<Byte>(now), source, target, size, 0, 1);
    };
    const auto factors = [&](std::size_t size, int count) {
        move_shares(head.key_factors<Byte>(old), head.key_factors<Byte>(now), source, target, size,
                    size * kChunk, count);
    };
    const std::size_t width = static_cast<std::size_t>(value_dim);
    if (!page.shares_kv) switch (page.forms.keys) {
        case KvForm::F32: keys(4, dim); break;
        case KvForm::F16: keys(2, dim); break;
        case KvForm::Int8: keys(4, dim / 4), factors(2, key_groups(dim)); break;
        case KvForm::Int4: keys(4, dim / 8), factors(2, 2 * key_groups(dim)); break;
    }
    switch (page.forms.values) {
        case KvForm::F32: values(4 * width); break;
        case KvForm::F16: values(2 * width); break;
        case KvForm::Int8:
            move_shares(head.values<Byte>(old) + source / 4 * 4 * width,
                        head.values<Byte>(now) + target / 4 * 4 * width, source % 4, target % 4, 1, 4, value_dim);
            move_shares(head.value_factors<Byte>(old), head.value_factors<Byte>(now), source,
                        target, 4, 0, 1);
            break;
        case KvForm::Int4: values(int4_row_nbytes(value_dim)); break;
    }
}

std::vector<KvShape> with_value_dims(std::vector<KvShape> layers) {
    for (KvShape& layer : layers)
        if (layer.value_dim == 0) layer.value_dim = layer.head_dim;
    return layers;
}

constexpr std::size_t whole_lines(std::size_t nbytes) { return (nbytes + 63) / 64 * 64; }

KvPage page_of(KvForms forms, int head_dim, int value_dim) {
    const std::size_t rows = kChunk;
    KvPage page{forms};
    if (value_dim < head_dim && !page.has_codes()) {
        page.shares_kv = true;
        page.nbytes = whole_lines(rows * head_dim * (forms.keys == KvForm::F32 ? 4 : 2));
        return page;
    }
    std::size_t keys = rows * head_dim, factors = 0, values = rows * value_dim, value_factors = 0;
    switch (forms.keys) {
        case KvForm::F32: keys *= 4; break;
        case KvForm::F16: keys *= 2; break;
        case KvForm::Int8: factors = rows * key_groups(head_dim) * 2; break;
        case KvForm::Int4: keys /= 2, factors = rows * key_groups(head_dim) * 4; break;
    }
    switch (forms.values) {
        case KvForm::F32: values *= 4; break;
        case KvForm::F16: values *= 2; break;
        case KvForm::Int8: value_factors = rows * sizeof(float); break;
        case KvForm::Int4:
            values = rows * int4_row_nbytes(value_dim) + 64;  // factors are read 16 at a time
            break;
    }
    page.key_factors = keys;
    page.values = keys + factors;
    page.value_factors = page.values + values;
    page.nbytes = whole_lines(page.value_factors + value_factors);
    return page;
}

}  // namespace

Cache::Cache(std::vector<KvShape> shapes, int slots, int most, KvForms forms, int blocks,
             std::vector<MixerShape> recurrent, int num_states, int draft_rows)
    : layers(with_value_dims(std::move(shapes))),
      num_slots(slots),
      max_len(most),
      states(std::move(recurrent), slots, num_states, draft_rows),
      block_nbytes(lay_out(forms)),
      num_blocks_(blocks) {
    need(std::min(slots, most) > 0, "a cache's dimensions must be positive");
    need(states.layers.empty() || states.layers.size() == layers.size(),
         "each layer of a cache must be named recurrent or not");
    const double rows = slots * (most + double{kChunk}),
                 per_row = static_cast<double>(block_nbytes) / kChunk;
    need(rows < 0x1p31 && blocks >= 0 && per_row * std::max(rows, blocks * double{kChunk}) < 1e15,
         "the cache would be absurdly large");
    tables_.assign(static_cast<std::size_t>(num_slots) * blocks_per_slot(), -1);
    if (num_blocks_ == 0) {
        num_blocks_ = static_cast<int>(tables_.size());
        std::iota(tables_.begin(), tables_.end(), 0);
    }
    memory_ = Buffer(num_blocks_ * block_nbytes);
}

std::size_t Cache::lay_out(KvForms forms) {
    need(!layers.empty(), "a cache needs layers");
    const bool is_int4 = forms.keys == KvForm::Int4 || forms.values == KvForm::Int4;
    double nbytes = 0;
    for (const KvShape& layer : layers) {
        const int dim = layer.head_dim, value_dim = layer.value_dim;
        need(layer.num_heads >= 0 && std::min(dim, value_dim) > 0, "a cache's dimensions must be positive");
        need(dim % kTile == 0 && value_dim % kTile == 0, "head size must be a multiple of 16");
        need(!is_int4 || (dim % kGroup == 0 && value_dim % kGroup == 0),
             "int4 keys or values need a head size that is a multiple of 32");
        need(forms.values != KvForm::Int4 || value_dim <= kWidestInt4,
             "int4 values need a head size of 512 at most");
        need(value_dim <= dim, "values cannot be wider than their keys");
        need(dim <= 1 << 20, "the cache would be absurdly large");
        pages_.push_back(page_of(forms, dim, value_dim));
        offsets_.push_back(static_cast<std::size_t>(nbytes));
        nbytes += static_cast<double>(pages_.back().nbytes) * layer.num_heads;
        need(nbytes < 1e15, "the cache would be absurdly large");
    }
    need(nbytes > 0, "a cache's dimensions must be positive");
    return static_cast<std::size_t>(nbytes);
}

KvHead Cache::head(int layer, int slot, int head) const {
    const KvPage& page = pages_[layer];
    return {memory_.as<std::uint8_t>() + offsets_[layer] + head * page.nbytes, block_nbytes,
            tables_.data() + static_cast<std::size_t>(slot) * blocks_per_slot(), &page,
            layers[layer].head_dim, layers[layer].value_dim};
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
    for (int layer = 0; layer < static_cast<int>(layers.size()); ++layer)
        for (int h = 0; h < layers[layer].num_heads; ++h)
            for (std::size_t i = 0; i < rows.size(); ++i)
                move_row(head(layer, slot, h), rows[i], start + static_cast<int>(i));
    states.move(slot, rows, start);
}

void Cache::copy_block(int source, int target) {
    std::uint8_t *from = block_bytes(source), *to = block_bytes(target);
    if (from != to) std::memcpy(to, from, block_nbytes);
}

std::uint8_t* Cache::block_bytes(int block) const {
    need(block >= 0 && block < num_blocks_, "no such cache block");
    return memory_.as<std::uint8_t>() + block * block_nbytes;
}

}  // namespace forerun
