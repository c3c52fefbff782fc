// forerun._native: the Python face of the CPU kernels. Arguments are checked here, once, and a
// wrong one raises ValueError; the kernels themselves check nothing. Arrays are read in
// place, never copied.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "isa.h"

namespace nb = nanobind;

namespace forerun {
void bind_suffix_index(nb::module_& m);
void bind_decoder(nb::module_& m);
}  // namespace forerun

namespace {

// The sum of all 8-byte words, read as the kernels read weights: in order, prefetching ahead.
std::uint64_t read_bytes(
    const nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& bytes) {
    constexpr std::size_t line = 64, ahead = 2560, words = line / sizeof(std::uint64_t);
    const std::uint8_t* p = bytes.data();
    const std::size_t num_lines = bytes.shape(0) / line;
    nb::gil_scoped_release unlocked;
    std::uint64_t sums[words] = {};
    for (std::size_t i = 0; i < num_lines; ++i, p += line) {
        __builtin_prefetch(p + ahead);
        std::uint64_t read[words];
        std::memcpy(read, p, line);
        for (std::size_t j = 0; j < words; ++j) sums[j] += read[j];
    }
    std::uint64_t total = 0;
    for (std::uint64_t sum : sums) total += sum;
    return total;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "CPU kernels of forerun; use them through forerun.kernels.";
    m.def("checked_kernels", &forerun::checked_kernels, "Names of the kernels.");
    m.def(
        "wrong_kernels",
        [](const std::string& isa, const std::string& broken) {
            return forerun::wrong_kernels(forerun::kernels_for(isa), broken);
        },
        nb::arg("isa"), nb::arg("broken") = "",
        "Kernels of an instruction set without the portable kernels' bits; tests break one first.");
    m.def(
        "int8_peak",
        [](const std::string& isa, int num_rounds) {
            if (num_rounds < 0) throw nb::value_error("num_rounds must not be negative");
            const forerun::Kernels& kernels = forerun::kernels_for(isa);
            nb::gil_scoped_release unlocked;
            std::int32_t kept = 0;
            return kernels.peak(num_rounds, &kept);
        },
        nb::arg("isa"), nb::arg("num_rounds"),
        "Does integer dot products and nothing else; returns how many multiplications those were.");
    m.def("read_bytes", &read_bytes, nb::arg("bytes").noconvert(),
          "Reads whole lines of 64 bytes as fast as it can; the sum of their 8-byte words.");
    forerun::bind_suffix_index(m);
    forerun::bind_decoder(m);
}
