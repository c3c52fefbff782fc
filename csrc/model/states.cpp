#include "model/states.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "model/runtime.h"

namespace forerun {
namespace {

void need(bool holds, const char* message) {
    if (!holds) throw std::invalid_argument(message);
}

// Takes numbers of a block one after the other, from cache lines on.
struct Layout {
    std::size_t count = 0;
    double exact = 0;

    std::size_t take(double size) {
        const std::size_t first = count;
        exact += size;
        need(exact < 1e14, "the recurrent states would be absurdly large");
        count += (static_cast<std::size_t>(size) + kTile - 1) / kTile * kTile;
        return first;
    }
};

}  // namespace

void check_sizes(const MixerShape& shape) {
    need(shape.num_channels > 0 && shape.num_taps > 0 && shape.num_taps <= kMostTaps,
         "a recurrent layer needs channels, and 1 to 16 taps");
    need(shape.num_channels % kTile == 0, "convolved channels must be a multiple of 16");
    if (!shape.has_heads()) return;
    need(std::min({shape.num_key_heads, shape.key_dim, shape.value_dim}) > 0,
         "a recurrent layer's dimensions must be positive");
    need(shape.num_heads % shape.num_key_heads == 0,
         "a recurrent layer's heads must be a multiple of its key heads");
    need(shape.key_dim % kTile == 0 && shape.value_dim % kTile == 0,
         "a recurrent layer's head sizes must be multiples of 16");
}

States::States(std::vector<MixerShape> shapes, int num_slots, int count, int rows)
    : layers(std::move(shapes)),
      num_states(count),
      draft_rows(rows),
      num_rows((kChunk + draft_rows + kTile - 1) / kTile * kTile),
      state_nbytes(lay_out_states()),
      rows_nbytes(lay_out_rows()) {
    if (!exist()) return;
    need(num_states > 0, "recurrent layers need a state");
    need(static_cast<double>(state_nbytes) * num_states < 1e15 &&
             static_cast<double>(rows_nbytes) * num_slots < 1e15,
         "the recurrent states would be absurdly large");
    state_of_.assign(num_slots, -1);
    rows_before_.assign(num_slots, 0);
    rows_used_.assign(num_slots, 0);
    states_ = Buffer(num_states * state_nbytes);
    rows_ = Buffer(num_slots * rows_nbytes);
}

std::size_t States::lay_out_states() {
    Layout layout;
    offsets_.resize(layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const MixerShape& shape = layers[i];
        if (!shape.exists()) continue;
        check_sizes(shape);
        offsets_[i].heads = layout.take(double(shape.value_width()) * shape.key_dim);
        offsets_[i].history = layout.take(double(shape.num_taps - 1) * shape.num_channels);
        for (int head = 0; head < shape.num_heads; ++head)
            heads_.emplace_back(static_cast<int>(i), head);
    }
    // Whole pages, so that all of a state can be given back.
    const std::size_t page = platform::page_size();
    return (layout.count * sizeof(float) + page - 1) / page * page;
}

std::size_t States::lay_out_rows() {
    Layout layout;
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const MixerShape& shape = layers[i];
        if (!shape.exists()) continue;
        const double rows = num_rows;
        offsets_[i].raw = layout.take(rows * shape.num_channels);
        offsets_[i].keys = layout.take(rows * shape.key_width());
        offsets_[i].changes = layout.take(rows * shape.value_width());
        offsets_[i].decays = layout.take(rows * shape.num_heads);
    }
    return layout.count * sizeof(float);
}

void States::check_state(int state) const {
    if (!exist() || state < 0 || state >= num_states)
        throw std::invalid_argument("no recurrent state " + std::to_string(state));
}

void States::place(int slot, int state, int rows) {
    check_state(state);
    need(rows >= 0 && rows % kChunk == 0, "a state is one of a multiple of 64 rows");
    state_of_[slot] = state;
    rows_before_[slot] = rows_used_[slot] = rows;
}

void States::clear(int state) {
    check_state(state);
    std::memset(states_.as<std::uint8_t>() + state * state_nbytes, 0, state_nbytes);
}

void States::copy(int source, int target) {
    for (int state : {source, target}) check_state(state);
    std::uint8_t* memory = states_.as<std::uint8_t>();
    if (source != target)
        std::memcpy(memory + target * state_nbytes, memory + source * state_nbytes, state_nbytes);
}

void States::drop(int state) {
    check_state(state);
    if (!has_small_pages_) states_.use_small_pages();
    has_small_pages_ = true;
    std::uint8_t* first = states_.as<std::uint8_t>() + state * state_nbytes;
    platform::return_pages(first, first + state_nbytes);
}

LayerState States::state_at(int layer, int state) const {
    float* first = states_.as<float>() + state * (state_nbytes / sizeof(float));
    return {first + offsets_[layer].heads, first + offsets_[layer].history};
}

LayerRows States::rows(int layer, int slot) const {
    float* first = rows_.as<float>() + slot * (rows_nbytes / sizeof(float));
    const Offsets& at = offsets_[layer];
    return {first + at.raw, first + at.keys, first + at.changes, first + at.decays};
}

std::uint8_t* States::state_bytes(int state) const {
    check_state(state);
    return states_.as<std::uint8_t>() + state * state_nbytes;
}

void States::check_room(int slot, int rows) const {
    if (rows - rows_before_[slot] > kChunk + draft_rows)
        throw std::out_of_range("a draft of more than " + std::to_string(draft_rows) + " rows");
}

// One head of one layer, as far as its chunk goes.
void States::advance_head(const Kernels& kernels, int slot, int unit) {
    const auto [layer, head] = heads_[unit];
    const MixerShape& shape = layers[layer];
    const LayerRows own = rows(layer, slot);
    const std::size_t matrix = static_cast<std::size_t>(shape.key_dim) * shape.value_dim,
                      first = static_cast<std::size_t>(head) * num_rows;
    float* to = state(layer, slot).heads + head * matrix;
    std::int32_t path[kChunk];
    std::iota(path, path + kChunk, 0);
    kernels.change_state({.state = to,
                          .to = to,
                          .key_dim = shape.key_dim,
                          .value_dim = shape.value_dim,
                          .keys = own.keys + static_cast<std::size_t>(shape.key_head(head)) *
                                                 num_rows * shape.key_dim,
                          .changes = own.changes + first * shape.value_dim,
                          .decays = own.decays + first,
                          .path = path});
}

// The rows behind a chunk of one layer come to lie where the chunk lay; what is convolved of its last
// rows becomes the state's.
void States::shift_rows(int layer, int slot, int count) {
    const MixerShape& shape = layers[layer];
    const LayerRows own = rows(layer, slot);
    const auto down = [&](float* part, int size, int runs) {
        const std::size_t run = static_cast<std::size_t>(num_rows) * size;
        for (int i = 0; i < runs; ++i)
            std::copy_n(part + i * run + kChunk * size, static_cast<std::size_t>(count) * size,
                        part + i * run);
    };
    const int kept = shape.num_taps - 1, width = shape.num_channels;
    std::copy_n(own.raw + static_cast<std::size_t>(kChunk - kept) * width,
                static_cast<std::size_t>(kept) * width, state(layer, slot).history);
    down(own.raw, width, 1);
    down(own.changes, shape.value_dim, shape.num_heads);
    down(own.decays, 1, shape.num_heads);
    // Keys lie in blocks of 16 rows.
    count = (count + kTile - 1) / kTile * kTile;
    down(own.keys, shape.key_dim, shape.num_key_heads);
}

void States::advance(Runtime& runtime, int slot, int num_known) {
    need(exist() && is_placed(slot), "the slot has no recurrent state");
    const int beyond = num_known - rows_before(slot);
    need(beyond >= 0 && beyond < 2 * kChunk, "a state can only go one chunk on");
    check_room(slot, num_known);
    if (beyond < kChunk) return;
    // Threads that come late read nothing of this: it is gone then.
    struct Job {
        States& states;
        const Kernels& kernels;
        int slot, count;
    } job{*this, runtime.kernels, slot, std::max(beyond, rows_used_[slot] - rows_before(slot)) - kChunk};
    const Runtime::PassLock lock(runtime);
    const int phases[] = {static_cast<int>(heads_.size()), static_cast<int>(layers.size())};
    runtime.pool.run(
        [](void* self, Worker& worker) {
            const Job* job = static_cast<const Job*>(self);
            worker.each([job](int unit) { job->states.advance_head(job->kernels, job->slot, unit); });
            worker.each([job](int layer) {
                if (job->states.layers[layer].exists())
                    job->states.shift_rows(layer, job->slot, job->count);
            });
        },
        &job, phases);
    rows_before_[slot] += kChunk;
}

void States::move(int slot, const std::vector<int>& moved, int start) {
    if (!exist() || moved.empty()) return;
    need(is_placed(slot) && start >= rows_before(slot), "rows of a state that has gone on");
    check_room(slot, moved.back() + 1);
    rows_used_[slot] = start + static_cast<int>(moved.size());
    const auto one = [&](float* part, int size, int from, int to) {
        if (from != to)
            std::copy_n(part + static_cast<std::size_t>(from) * size, size,
                        part + static_cast<std::size_t>(to) * size);
    };
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        const MixerShape& shape = layers[layer];
        if (!shape.exists()) continue;
        const LayerRows own = rows(static_cast<int>(layer), slot);
        for (std::size_t i = 0; i < moved.size(); ++i) {
            const int from = moved[i] - rows_before(slot),
                      to = start + static_cast<int>(i) - rows_before(slot);
            one(own.raw, shape.num_channels, from, to);
            for (int head = 0; head < shape.num_heads; ++head) {
                const std::size_t first = static_cast<std::size_t>(head) * num_rows;
                one(own.changes + first * shape.value_dim, shape.value_dim, from, to);
                one(own.decays + first, 1, from, to);
            }
            for (int head = 0; head < shape.num_key_heads; ++head) {
                float* keys = own.keys + static_cast<std::size_t>(head) * num_rows * shape.key_dim;
                for (int k = 0; k < shape.key_dim; ++k)
                    keys[(to / kTile * shape.key_dim + k) * kTile + to % kTile] =
                        keys[(from / kTile * shape.key_dim + k) * kTile + from % kTile];
            }
        }
    }
}

}  // namespace forerun
