// The Python face of the suffix index.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "suffix_index.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

void make_index(SuffixIndex* self, int max_depth, std::optional<std::size_t> capacity) {
    if (max_depth < 1) throw nb::value_error("max_depth must be at least 1");
    new (self) SuffixIndex(max_depth, capacity);
}

void extend(SuffixIndex& self, int document, const std::vector<int>& tokens) {
    if (document < 0) throw nb::value_error("a document must not be negative");
    self.extend(document, tokens);
}

std::vector<std::pair<int, Position>> occurrences(const SuffixIndex& self,
                                                  const std::vector<int>& context, int most) {
    std::vector<std::pair<int, Position>> pairs;
    for (const auto& [length, position] : self.occurrences(context, most))
        pairs.emplace_back(length, position);
    return pairs;
}

template <class T>
nb::tuple tuple_of(const std::vector<T>& values) {
    return nb::tuple(nb::cast(values));
}

std::optional<nb::tuple> continuation(const SuffixIndex& self, const std::vector<int>& context,
                                      double score, int most, int num_nodes, double factor,
                                      double offset, double min_token_prob) {
    if (!(factor >= 0 && offset >= 0)) throw nb::value_error("nodes granted must not be negative");
    const Limits limits{most, num_nodes, factor, offset, min_token_prob};
    const auto best = self.continuation(context, limits, score);
    if (!best) return std::nullopt;
    return nb::make_tuple(tuple_of(best->tokens), tuple_of(best->parents),
                          tuple_of(best->confidence), best->score);
}

}  // namespace

void bind_suffix_index(nb::module_& m) {
    nb::class_<SuffixIndex>(m, "SuffixIndex", "Documents, sorted by what stands before a place.")
        .def("__init__", &make_index, "max_depth"_a, "capacity"_a = nb::none())
        .def("extend", &extend, "document"_a, "tokens"_a)
        .def("occurrences", &occurrences, "context"_a, "most"_a)
        .def("continuation", &continuation, "context"_a, "score"_a, "most"_a, "num_nodes"_a,
             "factor"_a, "offset"_a, "min_token_prob"_a)
        .def("__sizeof__", &SuffixIndex::nbytes)
        .def_prop_ro("num_tokens", &SuffixIndex::num_tokens);
}

}  // namespace forerun
