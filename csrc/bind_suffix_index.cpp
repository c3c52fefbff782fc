// The Python face of the suffix index.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "suffix_index.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

template <class T>
nb::tuple tuple_of(const std::vector<T>& values) {
    return nb::tuple(nb::cast(values));
}

std::optional<nb::tuple> continuation(const SuffixIndex& self, const std::vector<int>& context,
                                      double score, int most, int num_nodes, double factor,
                                      double offset, double min_token_prob) {
    if (!(factor >= 0 && offset >= 0)) throw nb::value_error("nodes granted must not be negative");
    const auto best =
        self.continuation(context, {most, num_nodes, factor, offset, min_token_prob}, score);
    if (!best) return std::nullopt;
    return nb::make_tuple(tuple_of(best->tokens), tuple_of(best->parents),
                          tuple_of(best->confidence), best->score);
}

}  // namespace

void bind_suffix_index(nb::module_& m) {
    nb::class_<SuffixIndex>(m, "SuffixIndex", "Documents, sorted by what stands before a place.")
        .def(nb::init<int, std::optional<std::size_t>>(), "max_depth"_a, "capacity"_a = nb::none())
        .def("extend", &SuffixIndex::extend, "document"_a, "tokens"_a)
        .def("occurrences", &SuffixIndex::occurrences, "context"_a, "most"_a)
        .def("continuation", &continuation, "context"_a, "score"_a, "most"_a, "num_nodes"_a,
             "factor"_a, "offset"_a, "min_token_prob"_a)
        .def("__sizeof__", &SuffixIndex::nbytes)
        .def_prop_ro("num_tokens", &SuffixIndex::num_tokens);
}

}  // namespace forerun
