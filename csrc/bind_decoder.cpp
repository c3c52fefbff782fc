// The Python face of the decoder and its cache. Every argument is checked here or by the decoder; a
// wrong one raises ValueError.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "isa.h"
#include "model.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

template <class T>
using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array3 = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

constexpr int kLargest = 1 << 28;  // no dimension of a model or a cache is larger

void need(bool holds, const std::string& message) {
    if (!holds) throw nb::value_error(message.c_str());
}

template <class Array>
bool is_shaped(const Array& array, std::initializer_list<std::size_t> shape) {
    return std::equal(shape.begin(), shape.end(), array.shape_ptr());
}

int dimension(nb::handle config, const char* name, int least = 1) {
    const auto value = nb::cast<long long>(config[name]);
    need(value >= least && value <= kLargest, std::string(name) + " is out of range");
    return static_cast<int>(value);
}

Activation activation_of(const std::string& name) {
    if (name == "silu") return Activation::Silu;
    if (name == "gelu") return Activation::Gelu;
    if (name == "gelu_tanh") return Activation::GeluTanh;
    need(name == "relu", "unknown activation '" + name + "'");
    return Activation::Relu;
}

Shape shape_of(nb::dict config) {
    Shape s;
    s.vocab_size = dimension(config, "vocab_size");
    s.hidden_size = dimension(config, "hidden_size");
    s.intermediate_size = dimension(config, "intermediate_size");
    s.num_layers = dimension(config, "num_layers");
    s.num_heads = dimension(config, "num_heads");
    s.num_kv_heads = dimension(config, "num_kv_heads");
    s.head_dim = dimension(config, "head_dim");
    s.max_position = dimension(config, "max_position");
    s.activation = activation_of(nb::cast<std::string>(config["activation"]));
    s.is_gated = nb::cast<bool>(config["is_gated"]);
    s.is_layer_norm = nb::cast<bool>(config["is_layer_norm"]);
    s.norm_eps = nb::cast<float>(config["norm_eps"]);
    s.sliding_window = dimension(config, "sliding_window", 0);
    s.position_offset = dimension(config, "position_offset", -1);
    s.embedding_multiplier = nb::cast<float>(config["embedding_multiplier"]);
    s.residual_multiplier = nb::cast<float>(config["residual_multiplier"]);
    s.attention_scale = nb::cast<float>(config["attention_scale"]);
    s.logits_divisor = nb::cast<float>(config["logits_divisor"]);
    return s;
}

std::span<const float> values(const Array1<const float>& array) {
    return {array.data(), array.shape(0)};
}

Segment segment_of(nb::handle object) {
    Segment s;
    s.slot = nb::cast<int>(object.attr("slot"));
    s.base = nb::cast<int>(object.attr("base"));
    s.first = nb::cast<int>(object.attr("first"));
    s.stop = nb::cast<int>(object.attr("stop"));
    s.tokens = nb::cast<std::vector<int>>(object.attr("tokens"));
    nb::object parents = object.attr("parents");
    if (!parents.is_none()) s.parents = nb::cast<std::vector<int>>(parents);
    return s;
}

void check_shape(const std::string& name, int num_out, int num_in,
                 const std::optional<Array1<const float>>& bias) {
    need(num_out > 0 && num_out <= kLargest && num_in > 0 && num_in <= kLargest,
         "a weight's shape is out of range");
    need(!bias || bias->shape(0) == static_cast<std::size_t>(num_out),
         name + ": the bias has the wrong length");
}

void set(Decoder& self, const std::string& name, const std::string& format, int num_in,
         const Array2<const std::uint8_t>& rows, std::optional<Array1<const float>> bias) {
    const int num_out = static_cast<int>(std::min<std::size_t>(rows.shape(0), kLargest + 1));
    check_shape(name, num_out, num_in, bias);
    const WeightFormat& f = weight_format(format);
    need(rows.shape(1) == stored_row_nbytes(f, num_in),
         name + ": the data has not the size of its shape");
    nb::gil_scoped_release unlocked;
    self.set(name, pack(f, num_out, num_in, rows.data(), bias ? bias->data() : nullptr,
                        self.num_threads()));
}

void set_codes(Decoder& self, const std::string& name, const std::string& format,
               const Array2<const std::int8_t>& codes, const Array2<const float>& scales,
               std::optional<Array2<const float>> mins, std::optional<Array1<const float>> bias) {
    const int num_out = static_cast<int>(std::min<std::size_t>(codes.shape(0), kLargest + 1)),
              num_in = static_cast<int>(std::min<std::size_t>(codes.shape(1), kLargest + 1));
    check_shape(name, num_out, num_in, bias);
    const std::size_t rows = codes.shape(0), groups = scales.shape(1);
    need(is_shaped(scales, {rows, groups}) && (!mins || is_shaped(*mins, {rows, groups})) &&
             groups > 0 && codes.shape(1) % groups == 0,
         name + ": scales and minima must be (outputs, groups)");
    const int group = static_cast<int>(codes.shape(1) / groups);
    nb::gil_scoped_release unlocked;
    self.set(name, pack(weight_format(format), num_out, num_in,
                        Codes{codes.data(), scales.data(), mins ? mins->data() : nullptr, group},
                        bias ? bias->data() : nullptr, self.num_threads()));
}

void set_blank(Decoder& self, const std::string& name, const std::string& format, int num_out,
               int num_in, bool has_bias) {
    check_shape(name, num_out, num_in, {});
    self.set(name, blank(weight_format(format), num_out, num_in, has_bias));
}

nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> view(const Buffer& buffer, nb::handle owner) {
    return {buffer.as<std::uint8_t>(), {buffer.nbytes()}, owner};
}

// Format (none for a norm), shape, and the bytes of the weight and its bias as they lie in memory,
// until the weight is set again.
nb::tuple packed(nb::handle self, const std::string& name) {
    const Packed& packed = nb::cast<const Decoder&>(self).packed(name);
    const Linear& linear = packed.linear;
    if (linear.format)
        return nb::make_tuple(linear.format->name, nb::make_tuple(linear.num_out, linear.num_in),
                              view(packed.memory, self), view(packed.bias, self));
    return nb::make_tuple(nb::none(), nb::make_tuple(packed.memory.nbytes() / sizeof(float)),
                          view(packed.memory, self), view(packed.bias, self));
}

void set_norm(Decoder& self, const std::string& name, const Array1<const float>& weight,
              std::optional<Array1<const float>> bias) {
    self.set_norm(name, values(weight), bias ? values(*bias) : std::span<const float>());
}

void set_rope(Decoder& self, const Array1<const float>& frequencies, float factor) {
    self.set_rope(values(frequencies), factor);
}

void embed(Decoder& self, const Array1<const std::int64_t>& ids, const Array2<float>& rows) {
    const std::size_t width = self.shape().hidden_size;
    need(is_shaped(rows, {ids.shape(0), width}), "rows must be (ids, hidden size)");
    nb::gil_scoped_release unlocked;
    self.embed({ids.data(), ids.shape(0)}, rows.data());
}

void forward(Decoder& self, Cache& cache, nb::sequence segments,
             std::optional<Array2<const float>> inputs, const Array2<float>& hidden,
             const std::vector<int>& taps, const Array3<float>& tapped,
             const std::vector<int>& sublayers) {
    std::vector<Segment> read;
    for (nb::handle segment : segments) read.push_back(segment_of(segment));
    std::size_t num_rows = 0;
    for (const Segment& s : read) num_rows += std::max(0, s.stop - s.first);
    const std::size_t width = self.shape().hidden_size;
    need(is_shaped(hidden, {num_rows, width}), "hidden must be (rows, hidden size)");
    need(!inputs || is_shaped(*inputs, {num_rows, width}), "inputs must be (rows, hidden size)");
    need(taps.empty() || is_shaped(tapped, {taps.size(), num_rows, width}),
         "taps must be (layers, rows, hidden size)");
    nb::gil_scoped_release unlocked;
    self.forward(cache, read, inputs ? inputs->data() : nullptr, hidden.data(), taps, tapped.data(),
                 sublayers);
}

void check_hidden(const Decoder& self, const Array2<const float>& hidden) {
    const std::size_t num_rows = hidden.shape(0), width = self.shape().hidden_size;
    need(is_shaped(hidden, {num_rows, width}) && num_rows <= 1 << 16,
         "hidden must be (rows, hidden size)");
}

void head(Decoder& self, const Array2<const float>& hidden, const Array2<float>& logits) {
    check_hidden(self, hidden);
    const std::size_t vocab_size = self.shape().vocab_size;
    need(is_shaped(logits, {hidden.shape(0), vocab_size}), "logits must be (rows, vocabulary)");
    nb::gil_scoped_release unlocked;
    self.head(hidden.data(), static_cast<int>(hidden.shape(0)), logits.data());
}

void topk(Decoder& self, const Array2<const float>& hidden, const Array2<std::int64_t>& ids,
          const Array2<float>& logits) {
    check_hidden(self, hidden);
    const std::size_t num_rows = hidden.shape(0), k = ids.shape(1);
    need(is_shaped(ids, {num_rows, k}) && is_shaped(logits, {num_rows, k}),
         "ids and values must be (rows, k)");
    need(k >= 1 && k <= static_cast<std::size_t>(self.shape().vocab_size),
         "k must be 1 to " + std::to_string(self.shape().vocab_size));
    nb::gil_scoped_release unlocked;
    self.topk(hidden.data(), static_cast<int>(num_rows), static_cast<int>(k), ids.data(),
              logits.data());
}

void head_rows(Decoder& self, const Array2<const float>& hidden,
               const Array1<const std::int64_t>& ids, const Array2<float>& logits) {
    check_hidden(self, hidden);
    need(is_shaped(logits, {hidden.shape(0), ids.shape(0)}) && ids.shape(0) <= kLargest,
         "logits must be (rows, ids)");
    nb::gil_scoped_release unlocked;
    self.head_rows(hidden.data(), static_cast<int>(hidden.shape(0)), {ids.data(), ids.shape(0)},
                   logits.data());
}

const Linear& matrix(const Decoder& self, const std::string& name) {
    const Linear& linear = self.packed(name).linear;
    need(linear.tiles, name + " is no matrix that was set");
    return linear;
}

void unpack(const Decoder& self, const std::string& name, const Array2<float>& out) {
    const Linear& linear = matrix(self, name);
    const std::size_t num_out = linear.num_out, num_in = linear.num_in;
    need(is_shaped(out, {num_out, num_in}), "out has the wrong shape");
    for (int row = 0; row < linear.num_out; ++row)
        unpack_row(linear, row, out.data() + row * num_in);
}

// x (rows, in) through one linear layer, quantized as the decoder does: for tests.
void apply(Decoder& self, const std::string& name, const Array2<const float>& x,
           const Array2<float>& out) {
    const Linear& linear = matrix(self, name);
    const std::size_t width = linear.num_in, padded = linear.num_tiles() * kTile;
    need(is_shaped(x, {x.shape(0), width}) && x.shape(0) <= 1 << 16, "x must be (rows, in)");
    need(is_shaped(out, {x.shape(0), padded}), "out must be (rows, outputs in whole tiles)");
    nb::gil_scoped_release unlocked;
    self.apply(linear, x.data(), static_cast<int>(x.shape(0)), out.data());
}

Cache make_cache(int num_layers, int num_heads, int head_dim, int num_slots, int max_len,
                 bool is_half, std::vector<std::int32_t> pages) {
    for (int n : {num_layers, num_heads, head_dim, num_slots, max_len})
        need(n > 0 && n <= kLargest, "a cache's dimensions must be positive");
    need(head_dim % kTile == 0, "head size must be a multiple of 16");
    const double nbytes =
        4.0 * num_layers * num_heads * head_dim * num_slots * (max_len + 64.0) * (is_half ? 1 : 2);
    need(nbytes < 1e15 && num_slots * (max_len + 64.0) < 0x1p31,
         "the cache would be absurdly large");
    return Cache(num_layers, num_heads, head_dim, num_slots, max_len, is_half, std::move(pages));
}

void check_slot(const Cache& cache, int slot) {
    need(slot >= 0 && slot < cache.num_slots, "no cache slot " + std::to_string(slot));
}

// The bytes of keys and values as they lie in memory: for tests.
nb::tuple memory(nb::handle self) {
    const Cache& cache = nb::cast<const Cache&>(self);
    return nb::make_tuple(view(cache.keys(), self), view(cache.values(), self));
}

void move(Cache& cache, int slot, const std::vector<int>& rows, int start) {
    check_slot(cache, slot);
    for (int to = start; int row : rows)
        need(to >= 0 && row >= to++ && row < cache.max_len, "rows can only move down");
    cache.move(slot, rows, start);
}

void copy(Cache& cache, int source, int target, int length) {
    check_slot(cache, source);
    check_slot(cache, target);
    need(source != target && length <= cache.max_len, "the rows do not fit the cache");
    cache.copy(source, target, length);
}

}  // namespace

void bind_decoder(nb::module_& m) {
    m.def("runnable_isas", &runnable_isas, "Instruction sets this processor can run, best first.");

    nb::class_<Cache>(m, "Cache", "Keys and values of some sequences.")
        .def(
            "__init__",
            [](Cache* self, int num_layers, int num_heads, int head_dim, int num_slots, int max_len,
               bool is_half, std::vector<std::int32_t> pages) {
                new (self) Cache(make_cache(num_layers, num_heads, head_dim, num_slots, max_len,
                                            is_half, std::move(pages)));
            },
            "num_layers"_a, "num_heads"_a, "head_dim"_a, "num_slots"_a, "max_len"_a, "is_half"_a,
            "pages"_a = std::vector<std::int32_t>())
        .def("move", &move, "slot"_a, "rows"_a, "start"_a)
        .def("copy", &copy, "source"_a, "target"_a, "length"_a)
        .def("memory", &memory)
        .def("nbytes", &Cache::nbytes);

    nb::class_<Runtime>(m, "Runtime", "Kernels, threads and scratch memory that networks share.")
        .def(
            "__init__",
            [](Runtime* self, const std::string& isa, int num_threads) {
                need(num_threads >= 1 && num_threads <= 1024, "threads must be 1 to 1024");
                new (self) Runtime(kernels_for(isa), num_threads);
            },
            "isa"_a, "num_threads"_a)
        .def_prop_ro("isa", [](const Runtime& self) { return std::string(self.kernels.name); })
        .def_prop_ro("num_threads", [](const Runtime& self) { return self.pool.size(); })
        .def("nbytes", &Runtime::nbytes);

    nb::class_<Decoder>(m, "Decoder", "A decoder whose pass is one call.")
        .def(
            "__init__",
            [](Decoder* self, Runtime& runtime, nb::dict config) {
                new (self) Decoder(runtime, shape_of(config));
            },
            "runtime"_a, "config"_a, nb::keep_alive<1, 2>())
        .def("set", &set, "name"_a, "format"_a, "num_in"_a, "rows"_a.noconvert(), "bias"_a.none())
        .def("set_codes", &set_codes, "name"_a, "format"_a, "codes"_a.noconvert(),
             "scales"_a.noconvert(), "mins"_a.none(), "bias"_a.none())
        .def("set_blank", &set_blank, "name"_a, "format"_a, "num_out"_a, "num_in"_a, "has_bias"_a)
        .def("packed", &packed, "name"_a)
        .def("set_norm", &set_norm, "name"_a, "weight"_a.noconvert(), "bias"_a.none())
        .def("set_rope", &set_rope, "frequencies"_a.noconvert(), "factor"_a)
        .def("check", &Decoder::check)
        .def("embed", &embed, "ids"_a.noconvert(), "rows"_a.noconvert())
        .def("forward", &forward, "cache"_a, "segments"_a, "inputs"_a.none(),
             "hidden"_a.noconvert(), "taps"_a, "tapped"_a.noconvert(), "sublayers"_a)
        .def("head", &head, "hidden"_a.noconvert(), "logits"_a.noconvert())
        .def("topk", &topk, "hidden"_a.noconvert(), "ids"_a.noconvert(), "values"_a.noconvert())
        .def("head_rows", &head_rows, "hidden"_a.noconvert(), "ids"_a.noconvert(),
             "logits"_a.noconvert())
        .def("unpack", &unpack, "name"_a, "out"_a.noconvert())
        .def("apply", &apply, "name"_a, "x"_a.noconvert(), "out"_a.noconvert())
        .def("nbytes", &Decoder::nbytes);
}

}  // namespace forerun
