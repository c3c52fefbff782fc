// forerun._native: the Python face of the CPU kernels. Arguments are checked here, once, and a
// wrong one raises ValueError; the kernels themselves check nothing. Arrays are read in
// place, never copied.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>

#include "guess_tree.h"
#include "isa.h"
#include "suffix_index.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {

void bind_decoder(nb::module_& m);

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

template <class T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const Array1<T>& array) {
    return {array.data(), array.shape(0)};
}

void learn(LiveTable& self, const std::vector<int>& tokens, const std::vector<int>& likeliest,
           const std::vector<float>& probs) {
    if (likeliest.size() != probs.size()) throw nb::value_error("as many tokens as probabilities");
    self.learn(tokens, likeliest, probs);
}

void learn_tree(LiveTable& self, std::vector<int> tail, const std::vector<int>& tokens,
                const std::vector<int>& parents,
                const nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& ids,
                const nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& probs) {
    const std::size_t num_rows = tokens.size() + 1, k = ids.shape(1);
    if (parents.size() != tokens.size() || ids.shape(0) != num_rows ||
        probs.shape(0) != num_rows || probs.shape(1) != k)
        throw nb::value_error("a row for the tail and one for each node");
    std::vector<std::vector<int>> tails{std::move(tail)};
    std::vector<int> likeliest(k);
    for (std::size_t row = 0; row < num_rows; ++row) {
        if (row > 0) {
            const int parent = parents[row - 1];
            if (parent < -1 || parent >= static_cast<int>(row) - 1)
                throw nb::value_error("parents come before their children");
            tails.push_back(tails[static_cast<std::size_t>(parent + 1)]);
            tails.back().push_back(tokens[row - 1]);
        }
        for (std::size_t i = 0; i < k; ++i) likeliest[i] = static_cast<int>(ids.data()[row * k + i]);
        self.learn(tails[row], likeliest, {probs.data() + row * k, k});
    }
}

nb::tuple guess_tree(const std::vector<int>& context, const FileTable* file, const LiveTable& live,
                     const std::vector<const SuffixIndex*>& indexes, int num_nodes,
                     double min_chance) {
    const GuessTree tree = grow_tree(context, file, live, indexes, num_nodes, min_chance);
    return nb::make_tuple(tuple_of(tree.tokens), tuple_of(tree.parents), tuple_of(tree.chances));
}

}  // namespace
}  // namespace forerun

NB_MODULE(_native, m) {
    using namespace forerun;
    m.doc() = "CPU kernels of forerun; use them through forerun.kernels.";
    m.def("checked_kernels", &checked_kernels, "Names of the kernels.");
    m.def(
        "wrong_kernels",
        [](const std::string& isa, const std::string& broken) {
            return wrong_kernels(kernels_for(isa), broken);
        },
        "isa"_a, "broken"_a = "",
        "Kernels of an instruction set without the portable kernels' bits; tests break one first.");
    m.def(
        "int8_peak",
        [](const std::string& isa, int num_rounds) {
            if (num_rounds < 0) throw nb::value_error("num_rounds must not be negative");
            const Kernels& kernels = kernels_for(isa);
            nb::gil_scoped_release unlocked;
            std::int32_t kept = 0;
            return kernels.peak(num_rounds, &kept);
        },
        "isa"_a, "num_rounds"_a,
        "Does integer dot products and nothing else; returns how many multiplications those were.");
    m.def("read_bytes", &read_bytes, "bytes"_a.noconvert(),
          "Reads whole lines of 64 bytes as fast as it can; the sum of their 8-byte words.");
    nb::class_<SuffixIndex>(m, "SuffixIndex", "Documents, sorted by what stands before a place.")
        .def(nb::init<int, std::optional<std::size_t>>(), "max_depth"_a, "capacity"_a = nb::none())
        .def("extend", &SuffixIndex::extend, "document"_a, "tokens"_a)
        .def("occurrences", &SuffixIndex::occurrences, "context"_a, "most"_a)
        .def("continuation", &continuation, "context"_a, "score"_a, "most"_a, "num_nodes"_a,
             "factor"_a, "offset"_a, "min_token_prob"_a)
        .def("__sizeof__", &SuffixIndex::nbytes)
        .def_prop_ro("num_tokens", &SuffixIndex::num_tokens);
    nb::class_<LiveTable>(m, "LiveTable", "Learns which tokens come next.")
        .def(nb::init<int, std::size_t, std::uint32_t>(), "order"_a, "nbytes"_a,
             "most_age"_a = UINT32_MAX)
        .def("learn", &learn, "tokens"_a, "likeliest"_a, "probs"_a)
        .def("learn_tree", &learn_tree, "tail"_a, "tokens"_a, "parents"_a, "ids"_a.noconvert(),
             "probs"_a.noconvert())
        .def(
            "entries",
            [](const LiveTable& self, std::uint32_t since) {
                const std::string entries = self.entries(since);
                return nb::bytes(entries.data(), entries.size());
            },
            "since"_a = 0)
        .def(
            "absorb",
            [](LiveTable& self, const nb::bytes& entries) {
                self.absorb({entries.c_str(), entries.size()});
            },
            "entries"_a)
        .def_prop_ro("age", &LiveTable::age)
        .def("__sizeof__", &LiveTable::nbytes)
        .def_prop_ro("order", &LiveTable::order);
    nb::class_<FileTable>(m, "FileTable", "Next tokens as a file has them; its arrays are kept.")
        .def(
            "__init__",
            [](FileTable* self, const Array1<std::uint32_t>& offsets,
               const Array1<std::uint8_t>& data, int token_nbytes) {
                new (self) FileTable(span_of(offsets), span_of(data), token_nbytes);
            },
            "offsets"_a.noconvert(), "data"_a.noconvert(), "token_nbytes"_a,
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def("__sizeof__", &FileTable::nbytes);
    m.def("grow_tree", &guess_tree, "context"_a, "file"_a.none(), "live"_a, "indexes"_a,
          "num_nodes"_a, "min_chance"_a, "The likeliest continuations, best first.");
    bind_decoder(m);
}
