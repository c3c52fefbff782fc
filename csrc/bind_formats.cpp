// The Python face of formats and of functions of single numbers.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bind.h"
#include "isa/isa.h"
#include "kernels/formats.h"
#include "kernels/math.h"
#include "kernels/round.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

void round_rows(const std::string& format, const Array2<const float>& values,
                const Array2<std::uint8_t>& out) {
    const WeightFormat& f = weight_format(format);
    need_shape(out, {values.shape(0), stored_row_nbytes(f, dimension(values.shape(1)))},
               "out has the wrong shape");
    GilRelease unlocked;
    round_blocks(f, values.data(), values.shape(0) * values.shape(1), out.data());
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

}  // namespace

void bind_formats(nb::module_& m) {
    m.def("round_blocks", &round_rows, "format"_a, "values"_a.noconvert(), "out"_a.noconvert(),
          "Rounds rows (N, K) to the blocks (N, bytes a row) of q8_0 or q4_1.");
    m.def("evaluate", &evaluate, "function"_a, "x"_a.noconvert(), "out"_a.noconvert(), "isa"_a = "auto",
          "Writes exp, sigmoid, tanh, softplus, log1p, cos, sin or gelu of numbers, as the kernels compute them.");
    m.def("weight_formats", &described_formats, "The formats that kernels read, as fields of WeightFormat.");
    m.def("unpack_blocks", &unpack_rows, "format"_a, "rows"_a.noconvert(), "codes"_a.noconvert(),
          "scales"_a.noconvert(), "offsets"_a.noconvert().none(),
          "Unpacks rows of blocks (N, bytes a row) to whole numbers (N, K), scales and offsets (N, groups).");
}

}  // namespace forerun
