// The Python face of the decoder. Every argument is checked here or by the decoder; a wrong one
// raises ValueError.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bind.h"
#include "bind_config.h"
#include "isa/isa.h"
#include "kernels/math.h"
#include "kernels/round.h"
#include "model/model.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

template <class T>
using Array3 = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

using OptionalFloats = std::optional<Array1<const float>>;

template <class Array>
void need_shape(const Array& array, std::initializer_list<std::size_t> shape,
                const std::string& message) {
    need(std::equal(shape.begin(), shape.end(), array.shape_ptr()), message);
}

template <class Array>
auto data(const std::optional<Array>& array) {
    return array ? array->data() : nullptr;
}

std::span<const float> values(const Array1<const float>& array) {
    return {array.data(), array.shape(0)};
}

Segment segment_of(nb::handle s) {
    return {get<int>(s, "slot"),
            get<int>(s, "base"),
            get<int>(s, "first"),
            get<int>(s, "stop"),
            get<std::vector<int>>(s, "tokens"),
            get<std::optional<std::vector<int>>>(s, "parents").value_or(std::vector<int>())};
}

int dimension(std::size_t size) {
    need(size >= 1 && size <= kLargest, "a weight's shape is out of range");
    return static_cast<int>(size);
}

const float* bias_of(const std::string& name, int num_out, const OptionalFloats& bias) {
    if (bias) need_shape(*bias, {std::size_t(num_out)}, name + ": the bias has the wrong length");
    return data(bias);
}

void set(Decoder& self, const std::string& name, const std::string& format, int num_in,
         const Array2<const std::uint8_t>& rows, OptionalFloats bias) {
    const int num_out = dimension(rows.shape(0));
    const float* added = bias_of(name, num_out, bias);
    const WeightFormat& f = weight_format(format);
    need(rows.shape(1) == stored_row_nbytes(f, dimension(num_in)),
         name + ": the data has not the size of its shape");
    GilRelease unlocked;
    self.set(name, pack(self.kernels(), f, num_out, num_in, rows.data(), added, self.num_threads()));
}

void round_rows(const std::string& format, const Array2<const float>& values,
                const Array2<std::uint8_t>& out) {
    const WeightFormat& f = weight_format(format);
    need_shape(out, {values.shape(0), stored_row_nbytes(f, dimension(values.shape(1)))},
               "out has the wrong shape");
    GilRelease unlocked;
    round_blocks(f, values.data(), values.shape(0) * values.shape(1), out.data());
}

WeightShapes weight_shapes_of(const std::map<std::string, std::vector<std::size_t>>& weights) {
    WeightShapes shapes;
    for (const auto& [name, sizes] : weights) {
        need(sizes.size() == 1 || sizes.size() == 2, name + ": a weight has one dimension or two");
        const bool is_matrix = sizes.size() == 2;
        shapes[name] = {is_matrix, is_matrix ? dimension(sizes[0]) : 1, dimension(sizes.back())};
    }
    return shapes;
}

// A function of every number, as the kernels have it.
void evaluate(const std::string& function, const Array1<const float>& x, const Array1<float>& out, const std::string& isa) {
    need_shape(out, {x.shape(0)}, "as many numbers in as out");
    if (function == "gelu") {
        need(x.shape(0) % kTile == 0, "gelu takes 16 numbers at a time");
        return kernels_for(isa).activate(Activation::Gelu, x.data(), nullptr, static_cast<int>(x.shape(0)), out.data());
    }
    const std::pair<const char*, float (*)(float)> functions[] = {
        {"exp", ieee::exp},     {"sigmoid", ieee::sigmoid},
        {"tanh", ieee::tanh},   {"softplus", ieee::softplus},
        {"log1p", ieee::log1p}, {"cos", [](float v) { return ieee::turn(v).cos; }},
        {"sin", [](float v) { return ieee::turn(v).sin; }}};
    for (const auto& [name, call] : functions)
        if (function == name) return void(std::transform(x.data(), x.data() + x.shape(0), out.data(), call));
    need(false, "unknown function '" + function + "'");
}

// The fields of weights/codes.py's WeightFormat, of every format.
nb::list described_formats() {
    nb::list formats;
    for (const WeightFormat& f : weight_formats()) {
        nb::dict fields;
        fields["name"] = f.name;
        fields["bits"] = f.bits;
        fields["group"] = f.is_flat() || f.group == 1 ? nb::object(nb::none()) : nb::object(nb::int_(scale_group(f)));
        fields["has_min"] = f.scales == Scales::HalfMin || f.scales == Scales::SuperMin || f.scales == Scales::SuperNibbles;
        fields["has_zero"] = f.scales == Scales::HalfZero;
        fields["block"] = f.block;
        fields["block_nbytes"] = f.block_nbytes;
        fields["bits_per_weight"] = bits_per_weight(f);
        nb::object values = nb::none();
        if (f.values) values = nb::tuple(nb::cast(std::vector<int>(f.values, f.values + (std::size_t{1} << f.bits))));
        fields["values"] = values;
        formats.append(fields);
    }
    return formats;
}

void unpack_rows(const std::string& format, const Array2<const std::uint8_t>& rows, const Array2<std::uint8_t>& codes,
                 const Array2<float>& scales, const std::optional<Array2<float>>& offsets) {
    const WeightFormat& f = weight_format(format);
    const std::size_t num_rows = rows.shape(0);
    const int num_in = dimension(codes.shape(1));
    need_shape(rows, {num_rows, stored_row_nbytes(f, num_in)}, "rows have the wrong shape");
    need_shape(codes, {num_rows, std::size_t(num_in)}, "codes have the wrong shape");
    const std::initializer_list<std::size_t> groups{num_rows, std::size_t(num_in / scale_group(f))};
    need_shape(scales, groups, "scales have the wrong shape");
    if (offsets) need_shape(*offsets, groups, "offsets have the wrong shape");
    GilRelease unlocked;
    unpack_blocks(f, num_rows * (num_in / f.block), rows.data(), codes.data(), scales.data(), data(offsets));
}

void set_codes(Decoder& self, const std::string& name, const std::string& format,
               const Array2<const std::int8_t>& codes, const Array2<const float>& scales,
               std::optional<Array2<const float>> mins, OptionalFloats bias,
               const std::optional<Array1<const std::int32_t>>& order) {
    const int num_out = dimension(codes.shape(0)), num_in = dimension(codes.shape(1));
    const float* added = bias_of(name, num_out, bias);
    if (order) need_shape(*order, {codes.shape(1)}, name + ": the order must name every column");
    const std::size_t groups = scales.shape(1);
    const std::string complaint = name + ": scales and minima must be (outputs, groups)";
    const WeightFormat& f = weight_format(format);
    const bool may_end_early = f.scales == Scales::Single;
    const std::size_t whole = may_end_early ? groups * f.group : codes.shape(1);
    need(groups > 0 && whole % groups == 0 && whole >= codes.shape(1) &&
             whole < codes.shape(1) + whole / groups,
         complaint);
    need_shape(scales, {codes.shape(0), groups}, complaint);
    if (mins) need_shape(*mins, {codes.shape(0), groups}, complaint);
    const Codes source{codes.data(), scales.data(), data(mins), static_cast<int>(whole / groups),
                       order ? order->data() : nullptr};
    GilRelease unlocked;
    self.set(name, pack(f, num_out, num_in, source, added, self.num_threads()));
}

void set_flat(Decoder& self, const std::string& name, const std::string& format,
              const Array2<const std::int8_t>& codes, const Array1<const float>& scales,
              const Array1<const float>& inverse, const Array1<const std::int32_t>& pieces,
              int limit, bool uses_hadamard, OptionalFloats bias) {
    const int num_out = dimension(codes.shape(0)), num_in = dimension(codes.shape(1));
    const float* added = bias_of(name, num_out, bias);
    need_shape(scales, {codes.shape(0)}, name + ": there must be a scale for each output");
    need_shape(inverse, {codes.shape(1)}, name + ": there must be a factor for each input");
    need_shape(pieces, {codes.shape(1)}, name + ": there must be pieces for each input");
    const FlatCodes source{codes.data(),  scales.data(), inverse.data(),
                           pieces.data(), limit,         uses_hadamard};
    const WeightFormat& f = weight_format(format);
    GilRelease unlocked;
    self.set(name, pack(f, num_out, num_in, source, added, self.num_threads()));
}

void set_blank(Decoder& self, const std::string& name, const std::string& format, int num_out,
               int num_in, bool has_bias, bool is_apart) {
    self.set(name, blank(weight_format(format), dimension(num_out), dimension(num_in), has_bias,
                         is_apart));
}

// Format (none for a norm), shape, and the bytes of the weight and its bias as they lie in memory,
// until the weight is set again.
nb::tuple packed(nb::handle self, const std::string& name) {
    const Packed& packed = nb::cast<const Decoder&>(self).packed(name);
    const Linear& linear = packed.linear;
    nb::object shape = nb::make_tuple(packed.memory.nbytes() / sizeof(float));
    if (linear.format) shape = nb::make_tuple(linear.num_out, linear.num_in);
    return nb::make_tuple(linear.format ? linear.format->name : nullptr, shape,
                          view(packed.memory, self), view(packed.bias, self));
}

void set_norm(Decoder& self, const std::string& name, const Array1<const float>& weight,
              OptionalFloats bias) {
    self.set_norm(name, values(weight), bias ? values(*bias) : std::span<const float>());
}

void embed(Decoder& self, const Array1<const std::int64_t>& ids, const Array2<float>& rows) {
    const std::size_t width = self.shape().hidden_size;
    need_shape(rows, {ids.shape(0), width}, "rows must be (ids, hidden size)");
    GilRelease unlocked;
    self.embed({ids.data(), ids.shape(0)}, rows.data());
}

std::vector<Segment> segments_of(nb::sequence segments) {
    std::vector<Segment> read;
    for (nb::handle segment : segments) read.push_back(segment_of(segment));
    return read;
}

void forward(Decoder& self, Cache& cache, nb::sequence segments,
             std::optional<Array2<const float>> inputs, const Array2<float>& hidden,
             const std::vector<int>& aux_layers, const Array3<float>& aux) {
    const std::vector<Segment> read = segments_of(segments);
    std::size_t num_rows = 0;
    for (const Segment& s : read) num_rows += std::max(0, s.stop - s.first);
    const std::size_t width = self.shape().hidden_size;
    need_shape(hidden, {num_rows, width}, "hidden must be (rows, hidden size)");
    if (inputs) need_shape(*inputs, {num_rows, width}, "inputs must be (rows, hidden size)");
    if (!aux_layers.empty())
        need_shape(aux, {aux_layers.size(), num_rows, width},
                   "aux must be (layers, rows, hidden size)");
    GilRelease unlocked;
    self.forward(cache, read, data(inputs), hidden.data(), aux_layers, aux.data());
}

int num_rows_of(const Array2<const float>& rows, int width) {
    const std::size_t num_rows = rows.shape(0);
    need(num_rows <= 1 << 16, "too many rows");
    need_shape(rows, {num_rows, std::size_t(width)}, "rows must be (rows, hidden size)");
    return static_cast<int>(num_rows);
}

std::size_t scratch_nbytes(Decoder& self, Cache& cache, int num_rows, int num_nodes, int head_rows) {
    for (int count : {num_rows, num_nodes, head_rows})
        need(count >= 0 && count <= 1 << 20, "rows and nodes are out of range");
    GilRelease unlocked;
    return self.scratch_nbytes(cache, num_rows, num_nodes, head_rows);
}

Head& head_of(Head& self) { return self; }
Head& head_of(Decoder& self) { return self.head(); }

template <class T>
void logits(T& self, const Array2<const float>& hidden, const Array2<float>& logits) {
    Head& head = head_of(self);
    const int num_rows = num_rows_of(hidden, head.shape().width);
    need_shape(logits, {hidden.shape(0), std::size_t(head.shape().vocab_size)}, "logits must be (rows, vocabulary)");
    GilRelease unlocked;
    head.logits(hidden.data(), num_rows, logits.data());
}

template <class T>
void topk(T& self, const Array2<const float>& hidden, const Array2<std::int64_t>& ids,
          const Array2<float>& values, const std::optional<Array1<float>>& log_sums,
          const std::optional<Array2<float>>& logits) {
    Head& head = head_of(self);
    const int num_rows = num_rows_of(hidden, head.shape().width);
    const std::size_t k = ids.shape(1), vocab_size = head.shape().vocab_size;
    need_shape(ids, {hidden.shape(0), k}, "ids must be (rows, k)");
    need_shape(values, {hidden.shape(0), k}, "values must be (rows, k)");
    if (log_sums) need_shape(*log_sums, {hidden.shape(0)}, "log_sums must be (rows,)");
    if (logits) need_shape(*logits, {hidden.shape(0), vocab_size}, "logits must be (rows, vocabulary)");
    need(k >= 1 && k <= vocab_size, "k must be 1 to " + std::to_string(vocab_size));
    GilRelease unlocked;
    head.topk(hidden.data(), num_rows, static_cast<int>(k), ids.data(), values.data(),
              log_sums ? log_sums->data() : nullptr, logits ? logits->data() : nullptr);
}

template <class T>
void head_rows(T& self, const Array2<const float>& hidden, const Array1<const std::int64_t>& ids,
               const Array2<float>& logits) {
    Head& head = head_of(self);
    const int num_rows = num_rows_of(hidden, head.shape().width);
    need(ids.shape(0) <= kLargest, "too many ids");
    need_shape(logits, {hidden.shape(0), ids.shape(0)}, "logits must be (rows, ids)");
    GilRelease unlocked;
    head.columns(hidden.data(), num_rows, {ids.data(), ids.shape(0)}, logits.data());
}

// What a head and a decoder that has one can be asked.
template <class T>
void bind_head(nb::class_<T>& bound) {
    bound.def("head", &logits<T>, "hidden"_a.noconvert(), "logits"_a.noconvert())
        .def("topk", &topk<T>, "hidden"_a.noconvert(), "ids"_a.noconvert(), "values"_a.noconvert(),
             "log_sums"_a.noconvert().none(), "logits"_a.noconvert().none())
        .def("head_rows", &head_rows<T>, "hidden"_a.noconvert(), "ids"_a.noconvert(), "logits"_a.noconvert());
}

std::unique_ptr<Head> head_part(Decoder& self, const Array1<const std::int64_t>& ids) {
    dimension(ids.shape(0));
    GilRelease unlocked;
    return self.head().part({ids.data(), ids.shape(0)});
}

std::unique_ptr<Head> first_head_rows(Decoder& self, std::size_t num_rows) {
    return self.head().first_rows(dimension(num_rows));
}

// `gather`, if it is given, is called with the numbers (size, num_floats) of all ranks and how many of each
// are needed; an exception of it ends the process.
void new_ranks(Ranks* self, int rank, int size, std::size_t num_floats,
               const Array1<std::uint8_t>& memory, nb::object gather) {
    Ranks::Gather call;
    if (!gather.is_none())
        call = [gather, size, num_floats](float* parts, std::size_t count) noexcept {
            const nb::gil_scoped_acquire locked;
            gather(nb::ndarray<nb::numpy, float>(parts, {std::size_t(size), num_floats}, nb::handle()),
                   count);
        };
    need(num_floats >= 1 && num_floats <= std::size_t{1} << 32, "parts are out of range");
    new (self) Ranks(rank, size, num_floats, memory.data(), memory.shape(0), std::move(call));
}

// Gives all ranks' numbers (size, n) to each, of which `own` (n) are this one's.
void exchange(Ranks& self, const Array1<const float>& own, const Array2<float>& all) {
    const std::size_t count = own.shape(0);
    need(count <= self.num_floats(), "more numbers than ranks can exchange");
    need_shape(all, {std::size_t(self.size()), count}, "all must be (ranks, numbers)");
    GilRelease unlocked;
    std::copy_n(own.data(), count, self.own());
    self.all_reduce(count);
    for (int rank = 0; rank < self.size(); ++rank)
        std::copy_n(self.part(rank), count, all.data() + rank * count);
}

const Linear& matrix(const Decoder& self, const std::string& name) {
    const Linear& linear = self.packed(name).linear;
    need(linear.tiles, name + " is not a matrix that was set");
    return linear;
}

void unpack_matrix(const Linear& linear, const Array2<float>& out) {
    const std::size_t num_out = linear.num_out, num_in = linear.num_in;
    need_shape(out, {num_out, num_in}, "out has the wrong shape");
    const GilRelease unlocked;
    for (int row = 0; row < linear.num_out; ++row)
        unpack_row(linear, row, out.data() + row * num_in);
}

// x (rows, in) through one linear layer, quantized as the decoder does: for tests.
void apply(Decoder& self, const std::string& name, const Array2<const float>& x,
           const Array2<float>& out) {
    const Linear& linear = matrix(self, name);
    const int num_rows = num_rows_of(x, linear.num_read());
    need_shape(out, {x.shape(0), std::size_t(linear.num_tiles() * kTile)},
               "out must be (rows, outputs in whole tiles)");
    GilRelease unlocked;
    self.apply(linear, x.data(), num_rows, out.data());
}

}  // namespace

void bind_decoder(nb::module_& m) {
    m.def("round_blocks", &round_rows, "format"_a, "values"_a.noconvert(), "out"_a.noconvert(),
          "Rounds rows (N, K) to the blocks (N, bytes a row) of q8_0 or q4_1.");
    m.def("evaluate", &evaluate, "function"_a, "x"_a.noconvert(), "out"_a.noconvert(), "isa"_a = "auto",
          "Writes exp, sigmoid, tanh, softplus, log1p, cos, sin or gelu of numbers, as the kernels compute them.");
    m.def("weight_formats", &described_formats, "The formats that kernels read, as fields of WeightFormat.");
    m.def("unpack_blocks", &unpack_rows, "format"_a, "rows"_a.noconvert(), "codes"_a.noconvert(),
          "scales"_a.noconvert(), "offsets"_a.noconvert().none(),
          "Unpacks rows of blocks (N, bytes a row) to whole numbers (N, K), scales and offsets (N, groups).");
    m.def("runnable_isas", &runnable_isas, "Instruction sets this processor can run, best first.");

    nb::class_<Runtime>(m, "Runtime", "Kernels, threads and scratch memory that networks share.")
        .def(nb::init<const std::string&, int>(), "isa"_a, "num_threads"_a)
        .def_prop_ro("isa", [](const Runtime& self) { return std::string(self.kernels.name); })
        .def_prop_ro("num_threads", [](const Runtime& self) { return self.pool.size(); })
        .def("nbytes", &Runtime::nbytes);

    nb::class_<Ranks>(m, "Ranks", "What processes exchange that hold parts of one model.")
        .def("__init__", &new_ranks, "rank"_a, "size"_a, "num_floats"_a, "memory"_a.noconvert(),
             "gather"_a.none(), nb::keep_alive<1, 5>())
        .def_static("nbytes", &Ranks::nbytes, "size"_a, "num_floats"_a)
        .def("exchange", &exchange, "own"_a.noconvert(), "all"_a.noconvert());

    nb::class_<Head> head(m, "Head", "A matrix whose outputs are logits.");
    bind_head(head);
    head.def(
            "unpack", [](const Head& self, const Array2<float>& out) { unpack_matrix(self.weights(), out); },
            "out"_a.noconvert())
        .def("nbytes", &Head::nbytes);

    nb::class_<Decoder> decoder(m, "Decoder", "A decoder whose pass is one call.");
    bind_head(decoder);
    decoder
        .def(
            "__init__",
            [](Decoder* self, Runtime& runtime, nb::handle config,
               const std::map<std::string, std::vector<std::size_t>>& weights) {
                new (self) Decoder(runtime, shape_of(config), weight_shapes_of(weights));
            },
            "runtime"_a, "config"_a, "weights"_a, nb::keep_alive<1, 2>())
        .def("set", &set, "name"_a, "format"_a, "num_in"_a, "rows"_a.noconvert(), "bias"_a.none())
        .def("set_codes", &set_codes, "name"_a, "format"_a, "codes"_a.noconvert(),
             "scales"_a.noconvert(), "mins"_a.none(), "bias"_a.none(),
             "order"_a.none() = nb::none())
        .def("set_flat", &set_flat, "name"_a, "format"_a, "codes"_a.noconvert(),
             "scales"_a.noconvert(), "inverse"_a.noconvert(), "pieces"_a.noconvert(), "limit"_a,
             "is_even"_a, "bias"_a.none())
        .def("set_blank", &set_blank, "name"_a, "format"_a, "num_out"_a, "num_in"_a, "has_bias"_a,
             "is_apart"_a = false)
        .def("packed", &packed, "name"_a)
        .def("set_norm", &set_norm, "name"_a, "weight"_a.noconvert(), "bias"_a.none())
        .def(
            "set_attention",
            [](Decoder& self, int layer, int window, const Array1<const float>& frequencies,
               float factor) { self.set_attention(layer, window, values(frequencies), factor); },
            "layer"_a, "window"_a, "frequencies"_a.noconvert(), "factor"_a)
        .def("set_ranks", &Decoder::set_ranks, "ranks"_a, nb::keep_alive<1, 2>())
        .def("check", &Decoder::check)
        .def("embed", &embed, "ids"_a.noconvert(), "rows"_a.noconvert())
        .def("forward", &forward, "cache"_a, "segments"_a, "inputs"_a.none(),
             "hidden"_a.noconvert(), "aux_layers"_a, "aux"_a.noconvert())
        .def(
            "phases",
            [](Decoder& self, Cache& cache, nb::sequence segments) {
                return self.phases(cache, segments_of(segments));
            },
            "cache"_a, "segments"_a)
        .def("head_part", &head_part, "ids"_a.noconvert(), nb::keep_alive<0, 1>())
        .def("first_head_rows", &first_head_rows, "num_rows"_a, nb::keep_alive<0, 1>())
        .def(
            "unpack",
            [](const Decoder& self, const std::string& name, const Array2<float>& out) {
                unpack_matrix(matrix(self, name), out);
            },
            "name"_a, "out"_a.noconvert())
        .def("apply", &apply, "name"_a, "x"_a.noconvert(), "out"_a.noconvert())
        .def("scratch_nbytes", &scratch_nbytes, "cache"_a, "num_rows"_a, "num_nodes"_a, "head_rows"_a)
        .def("attention_nbytes", &Decoder::attention_nbytes, "cache"_a)
        .def("nbytes", &Decoder::nbytes);
}

}  // namespace forerun
