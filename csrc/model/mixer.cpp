// The first half of a layer that has a recurrent state instead of attention: a short convolution and,
// mostly, heads with a state (recurrence.h). Its phases:
//   projections -> convolution, keys into the slot's rows -> scores of keys -> state and rows,
//   by head -> norm and gate -> output projection
// A row that no chunk before it is finished for, in a draft that crosses a multiple of 64 positions, has
// the state at the end of its own path's chunk, computed as `States::advance` would.

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/math.h"
#include "model/model.h"

namespace forerun {
namespace {

// Where in a row the parts of its projections lie.
struct Projected {
    int z, rate, decay;
    std::size_t stride;

    Projected(const MixerShape& mixer, int hidden_size) {
        const int heads = (mixer.num_heads + kTile - 1) / kTile * kTile;
        z = mixer.has_heads() ? mixer.num_channels : 3 * hidden_size;
        rate = z + mixer.value_width();
        decay = rate + heads;
        stride = static_cast<std::size_t>(decay) + heads;
    }
};

// Where in a row's channels the parts of its heads lie.
struct Channels {
    int query, key, value;

    explicit Channels(const MixerShape& mixer)
        : query(mixer.kind == MixerKind::Delta ? 0 : mixer.value_width() + mixer.key_width()),
          key(mixer.kind == MixerKind::Delta ? mixer.key_width() : mixer.value_width()),
          value(mixer.kind == MixerKind::Delta ? 2 * mixer.key_width() : 0) {}
};

}  // namespace

std::size_t Decoder::mixer_stride(int layer) const {
    return Projected(mixer_of(layer), shape_.hidden_size).stride;
}

// Of each row, the rows of its slot since the state's on its path; the ends of chunks inside drafts. The
// state may be one of the segment's first rows, which are certain: `known` is less than 0 then.
void Decoder::plan_mixers() {
    mixer_rows_.clear();
    mixer_paths_.clear();
    mixer_units_.clear();
    borders_.clear();
    if (!has_mixers()) return;
    for (std::size_t i = 0; i < segments_.size(); ++i) {
        const Segment& s = segments_[i];
        const int known = s.base - cache_->states.rows_before(s.slot);
        for (int node = s.first; node < s.stop; node += kStateRows)
            mixer_units_.push_back({static_cast<int>(i),
                                    static_cast<int>(mixer_rows_.size()) + node - s.first,
                                    std::min(kStateRows, s.stop - node)});
        for (int node = s.first; node < s.stop; ++node) plan_mixer_row(static_cast<int>(i), known, node);
        cache_->states.note_rows(s.slot, s.base + s.stop);
    }
}

void Decoder::plan_mixer_row(int segment, int known, int node) {
    const Segment& s = segments_[segment];
    MixerRow row{mixer_paths_.size(), 0, known + node, -1};
    for (int i = 0; i < known; ++i) mixer_paths_.push_back(i);
    const auto above = static_cast<std::ptrdiff_t>(mixer_paths_.size());
    for (int i = node; i >= 0 && known + i >= 0; i = s.parents.empty() ? i - 1 : s.parents[i])
        mixer_paths_.push_back(known + i);
    std::reverse(mixer_paths_.begin() + above, mixer_paths_.end());
    row.length = static_cast<int>(mixer_paths_.size() - row.path);
    if (row.length > 2 * kChunk) throw std::out_of_range("a draft of more than 64 rows below each other");
    if (row.length > kChunk) {
        const auto end_of = [&](std::size_t path) { return mixer_paths_[path + kChunk - 1]; };
        const auto found = std::ranges::find_if(borders_, [&](const ChunkBorder& border) {
            return border.segment == segment && end_of(border.path) == end_of(row.path);
        });
        row.border = static_cast<int>(found - borders_.begin());
        if (found == borders_.end()) borders_.push_back({segment, row.path});
    }
    mixer_rows_.push_back(row);
}

// Pieces of a row's units: several if there are few rows.
int Decoder::row_parts(int units) const {
    const int threads = pool_.size();
    return threads == 1 || num_rows_ >= 4 * threads ? 1 : std::min(units, 2 * threads);
}

int Decoder::mixed_units(int layer) const {
    const MixerShape& mixer = mixer_of(layer);
    if (mixer.has_heads()) return mixer.num_key_heads + mixer.num_heads;
    return shape_.hidden_size % kGroup == 0 ? shape_.hidden_size / kGroup : 1;
}

// Groups of values that are normed together and can be quantized by themselves; else all are one.
int Decoder::gated_units(int layer) const {
    const MixerShape& mixer = mixer_of(layer);
    const int groups = mixer.kind == MixerKind::Delta ? mixer.num_heads : mixer.num_key_heads;
    return mixer.value_width() / groups % kGroup == 0 ? groups : 1;
}

int Decoder::projected_tiles(int layer) const {
    const Layer& l = layers_[layer];
    if (!mixer_of(layer).has_heads()) return shape_.hidden_size / kTile;
    return l.in_proj.num_tiles() + l.z.num_tiles() + (l.beta.format ? l.beta.num_tiles() : 0) +
           l.dt.num_tiles();
}

// The pieces of a mixer's phases before the output projection.
std::vector<int> Decoder::mixer_pieces(int layer) const {
    const MixerShape& mixer = mixer_of(layer);
    const int rows = num_rows_, most = 4 * pool_.size(), units = mixed_units(layer);
    std::vector<int> pieces{std::min(most, projected_tiles(layer)), rows * row_parts(units)};
    if (mixer.has_heads())
        pieces.insert(pieces.end(),
                      {static_cast<int>(mixer_units_.size()) * mixer.num_key_heads,
                       static_cast<int>(segments_.size()) * mixer.num_heads,
                       rows * row_parts(gated_units(layer))});
    return pieces;
}

void Decoder::run_mixer(Worker& worker, int index) {
    const MixerShape& mixer = mixer_of(index);
    worker.each([&](int piece) {
        const int tiles = projected_tiles(index);
        const Part part(tiles, piece, std::min(4 * pool_.size(), tiles));
        mixer.has_heads() ? project_parts(index, part) : project_gated(index, part);
    });
    worker.each([&](int piece) {
        const int units = mixed_units(index), parts = row_parts(units);
        mix_row(index, piece / parts, Part(units, piece % parts, parts));
    });
    if (mixer.has_heads()) {
        worker.each([&](int piece) {
            const int heads = mixer.num_key_heads;
            score_keys(index, mixer_units_[piece / heads], piece % heads);
        });
        worker.each([&](int piece) {
            recur_head(index, piece / mixer.num_heads, piece % mixer.num_heads, worker.thread);
        });
        worker.each([&](int piece) {
            const int units = gated_units(index), parts = row_parts(units);
            gate_row(index, piece / parts, Part(units, piece % parts, parts));
        });
    }
    end_attention(worker, index);
}

// Some of the tiles of all that a row is projected to.
void Decoder::project_parts(int index, const Part& tiles) {
    const Layer& layer = layers_[index];
    const MixerShape& mixer = mixer_of(index);
    const Projected at(mixer, shape_.hidden_size);
    const Columns parts[] = {
        {&layer.in_proj, 0}, {&layer.z, at.z}, {&layer.beta, at.rate}, {&layer.dt, at.decay}};
    project(parts, tiles, at.stride);
}

// Some of the tiles of several matrices, counted one after the other. Returns how many tiles they have.
int Decoder::project(std::span<const Columns> parts, const Part& tiles, std::size_t stride) {
    int before = 0;
    for (const auto& [linear, column] : parts) {
        if (!linear->format) continue;
        const int first = std::max(tiles.first - before, 0),
                  stop = std::min(tiles.stop - before, linear->num_tiles());
        if (first < stop)
            kernels_.linear(*linear, first, stop - first, normed_, 0, num_rows_,
                            {qkv_ + column + first * kTile, stride});
        before += linear->num_tiles();
    }
    return before;
}

// The same of a convolution alone: gate in times x, in the gate's place, and gate out.
void Decoder::project_gated(int index, const Part& tiles) {
    const Linear& linear = layers_[index].in_proj;
    const std::size_t stride = mixer_stride(index);
    const int width = shape_.hidden_size, all = width / kTile, count = tiles.stop - tiles.first;
    float* first = qkv_ + tiles.first * kTile;
    for (int part = 0; part < 3; ++part)
        kernels_.linear(linear, part * all + tiles.first, count, normed_, 0, num_rows_,
                        {first + part * width, stride});
    for (int row = 0; row < num_rows_; ++row) {
        float* gate = first + row * stride;
        for (int i = 0; i < count * kTile; ++i) gate[i] *= gate[2 * width + i];
    }
}

// Channels of one row, convolved with those of the rows before it on its path; what is convolved of it is
// left beside the slot's state.
void Decoder::convolve(int index, int row, int channel, int count, float* out) {
    const Layer& layer = layers_[index];
    const MixerShape& mixer = mixer_of(index);
    const MixerRow& own = mixer_rows_[row];
    const Segment& segment = segments_[row_segment_[row]];
    const LayerRows rows = cache_->states.rows(index, segment.slot);
    const LayerState state = cache_->states.state(index, segment.slot);
    const std::size_t width = mixer.num_channels, stride = mixer_stride(index);
    const int known = segment.base - cache_->states.rows_before(segment.slot),
              first = known + segment.first;  // of this pass
    const float* taps[kMostTaps];
    for (int tap = 0; tap < mixer.num_taps; ++tap) {
        const int place = own.length - mixer.num_taps + tap;  // on the path; before it is the state's
        const int at = place < 0 ? place : mixer_paths_[own.path + place];
        taps[tap] = place < 0     ? state.history + (mixer.num_taps - 1 + place) * width
                    : at < first ? rows.raw + at * width
                                 : qkv_ + (row + at - own.own) * stride;
        taps[tap] += channel;
    }
    const Convolution convolution{.rows = taps,
                                  .weights = layer.conv.weight + channel,
                                  .bias = mixer.has_bias ? layer.conv_bias.weight + channel : nullptr,
                                  .stride = width,
                                  .num_taps = mixer.num_taps,
                                  .is_activated = mixer.has_heads()};
    kernels_.convolve(convolution, count, out);
    std::copy_n(qkv_ + row * stride + channel, count, rows.raw + own.own * width + channel);
}

// Some units of a row: the keys and queries of key heads, then the values of heads; or channels of a
// convolution alone, whose output is gated.
void Decoder::mix_row(int index, int row, const Part& units) {
    const Layer& layer = layers_[index];
    const MixerShape& mixer = mixer_of(index);
    if (mixer.has_heads()) {
        for (int unit = units.first; unit < units.stop; ++unit)
            if (unit < mixer.num_key_heads)
                mix_key(index, row, unit);
            else
                mix_value(index, row, unit - mixer.num_key_heads);
        return;
    }
    const int width = shape_.hidden_size, each = width / mixed_units(index), first = units.first * each,
              count = (units.stop - units.first) * each;
    const Rows rows = attended_.of(layer.o);
    const float* gate = qkv_ + row * mixer_stride(index) + width + first;
    float* out = rows.x + static_cast<std::size_t>(row) * rows.width + first;
    convolve(index, row, first, count, out);
    for (int i = 0; i < count; ++i) out[i] *= gate[i];
    if (!layer.o.is_float()) quantize(layer.o, out, rows, row, first, count);
}

void Decoder::mix_key(int index, int row, int head) {
    const MixerShape& mixer = mixer_of(index);
    const Channels at(mixer);
    const int dim = mixer.key_dim, own = mixer_rows_[row].own;
    float* channels = convolved_ + static_cast<std::size_t>(row) * mixer.num_channels;
    float *query = channels + at.query + head * dim, *key = channels + at.key + head * dim;
    convolve(index, row, at.query + head * dim, dim, query);
    convolve(index, row, at.key + head * dim, dim, key);
    if (mixer.kind == MixerKind::Delta) {
        // x / sqrt(sum of squares + 1e-6) as an rms norm; queries are divided by sqrt(dim) as well.
        const Norm unit{layers_[index].key_scale.data(), nullptr, 1e-6f / static_cast<float>(dim), false};
        kernels_.norm(key, unit, dim, key);
        kernels_.norm(query, unit, dim, query);
        kernels_.scale(query, dim, unit.weight[0]);
    }
    float* keys = cache_->states.rows(index, segments_[row_segment_[row]].slot).keys +
                  static_cast<std::size_t>(head) * cache_->states.num_rows * dim +
                  static_cast<std::size_t>(own / kTile) * dim * kTile + own % kTile;
    for (int k = 0; k < dim; ++k) keys[k * kTile] = key[k];
}

void Decoder::mix_value(int index, int row, int head) {
    const Layer& layer = layers_[index];
    const MixerShape& mixer = mixer_of(index);
    const Projected at(mixer, shape_.hidden_size);
    const int channel = Channels(mixer).value + head * mixer.value_dim;
    convolve(index, row, channel, mixer.value_dim,
             convolved_ + static_cast<std::size_t>(row) * mixer.num_channels + channel);
    float* projected = qkv_ + row * at.stride;
    float &rate = projected[at.rate + head], &decay = projected[at.decay + head];
    float step = ieee::softplus(decay + layer.dt_bias.weight[head]);
    if (mixer.kind == MixerKind::Delta) {
        rate = ieee::sigmoid(rate);
    } else {
        step = std::min(std::max(step, mixer.least_step), mixer.most_step);
        rate = step;
    }
    decay = layer.decay.weight[head] * step;
}

// Scores of some rows' keys and queries with the keys of their slot's rows.
void Decoder::score_keys(int index, const MixerUnit& unit, int head) {
    const MixerShape& mixer = mixer_of(index);
    const Channels at(mixer);
    const bool is_delta = mixer.kind == MixerKind::Delta;
    const int dim = mixer.key_dim, each = is_delta ? 2 : 1;
    const float* vectors[2 * kStateRows];
    for (int i = 0; i < unit.num_rows; ++i) {
        const float* channels =
            convolved_ + static_cast<std::size_t>(unit.row + i) * mixer.num_channels + head * dim;
        vectors[i * each] = channels + at.query;
        if (is_delta) vectors[i * each + 1] = channels + at.key;
    }
    const float* keys = cache_->states.rows(index, segments_[unit.segment].slot).keys +
                        static_cast<std::size_t>(head) * cache_->states.num_rows * dim;
    kernels_.dot_keys(keys, mixer_rows_[unit.row + unit.num_rows - 1].own / kTile + 1, dim, vectors,
                      unit.num_rows * each, scores_of(index, unit.row, head), cache_->states.num_rows);
}

// (key heads, R, 2 of the delta rule, rows of a slot): of a row's query, then of its key.
float* Decoder::scores_of(int index, int row, int head) const {
    const int each = mixer_of(index).kind == MixerKind::Delta ? 2 : 1;
    return scores_ + (static_cast<std::size_t>(head) * num_rows_ + row) * each * cache_->states.num_rows;
}

// One head of a segment's rows: those whose chunk the slot's state begins, then those behind each border.
void Decoder::recur_head(int index, int segment, int head, int thread) {
    const MixerShape& mixer = mixer_of(index);
    const States& states = cache_->states;
    const int slot = segments_[segment].slot, num_rows = states.num_rows;
    const LayerRows own = states.rows(index, slot);
    const std::size_t matrix = static_cast<std::size_t>(mixer.key_dim) * mixer.value_dim,
                      first = static_cast<std::size_t>(head) * num_rows;
    float* scratch = scratch_ + thread * scratch_stride_;
    Recurrence r{.state = states.state(index, slot).heads + head * matrix,
                 .key_dim = mixer.key_dim,
                 .value_dim = mixer.value_dim,
                 .is_delta = mixer.kind == MixerKind::Delta,
                 .skip = layers_[index].skip.weight ? layers_[index].skip.weight[head] : 0.0f,
                 .changes = own.changes + first * mixer.value_dim,
                 .decays = own.decays + first,
                 .scratch = scratch + matrix};
    recur_rows(index, segment, head, -1, r);
    StateChange change{.state = r.state,
                       .to = scratch,
                       .key_dim = mixer.key_dim,
                       .value_dim = mixer.value_dim,
                       .keys = own.keys + static_cast<std::size_t>(mixer.key_head(head)) * num_rows *
                                              mixer.key_dim,
                       .changes = r.changes,
                       .decays = r.decays};
    r.state = scratch;
    for (int border = 0; border < static_cast<int>(borders_.size()); ++border) {
        if (borders_[border].segment != segment) continue;
        change.path = &mixer_paths_[borders_[border].path];
        kernels_.change_state(change);
        recur_rows(index, segment, head, border, r);
    }
}

// Those of a segment's rows that are behind a border, -1: behind none.
void Decoder::recur_rows(int index, int segment, int head, int border, Recurrence& r) {
    const MixerShape& mixer = mixer_of(index);
    const Channels at(mixer);
    const Projected projected(mixer, shape_.hidden_size);
    const int key_head = mixer.key_head(head), value = head * mixer.value_dim;
    RecurrentRow rows[kStateRows];
    r.rows = rows;
    r.num_rows = 0;
    for (const MixerUnit& unit : mixer_units_) {
        if (unit.segment != segment) continue;
        for (int row = unit.row; row < unit.row + unit.num_rows; ++row) {
            const MixerRow& planned = mixer_rows_[row];
            if (planned.border != border) continue;
            const int chunk = border < 0 ? 0 : kChunk;
            const float* channels = convolved_ + static_cast<std::size_t>(row) * mixer.num_channels;
            const float* numbers = qkv_ + row * projected.stride + head;
            const float* scores = scores_of(index, row, key_head);
            rows[r.num_rows++] = {
                .key = channels + at.key + key_head * mixer.key_dim,
                .query = channels + at.query + key_head * mixer.key_dim,
                .value = channels + at.value + value,
                .key_scores = scores + cache_->states.num_rows,  // of the delta rule only
                .query_scores = scores,
                .log_decay = numbers[projected.decay],
                .rate = numbers[projected.rate],
                .path = &mixer_paths_[planned.path + chunk],
                .length = planned.length - chunk,
                .out = attended_.x + static_cast<std::size_t>(row) * mixer.value_width() + value};
        }
        if (r.num_rows == 0) continue;
        kernels_.recur(r);
        r.num_rows = 0;
    }
}

// Some units of what a row's heads have read: normed and gated by head, or gated and then normed by group.
void Decoder::gate_row(int index, int row, const Part& units) {
    const Layer& layer = layers_[index];
    const MixerShape& mixer = mixer_of(index);
    const bool is_delta = mixer.kind == MixerKind::Delta;
    const int groups = is_delta ? mixer.num_heads : mixer.num_key_heads,
              width = mixer.value_width() / groups, each = groups / gated_units(index);
    const Rows rows = attended_.of(layer.o);
    const Projected at(mixer, shape_.hidden_size);
    const float* gate = qkv_ + row * at.stride + at.z;
    float* out = rows.x + static_cast<std::size_t>(row) * rows.width;
    for (int group = units.first * each; group < units.stop * each; ++group) {
        const int first = group * width;
        Norm norm = layer.state_norm;
        if (!is_delta) norm.weight += first;
        if (is_delta) kernels_.norm(out + first, norm, width, out + first);
        kernels_.activate(Activation::Silu, gate + first, out + first, width, out + first);
        if (!is_delta) kernels_.norm(out + first, norm, width, out + first);
    }
    const int first = units.first * each * width, count = (units.stop - units.first) * each * width;
    if (!layer.o.is_float()) quantize(layer.o, out + first, rows, row, first, count);
}

}  // namespace forerun
