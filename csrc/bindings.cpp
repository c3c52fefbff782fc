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

#include "bind.h"
#include "drafters/growth.h"
#include "drafters/suffix_index.h"
#include "isa/isa.h"
#include "model/draw.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {

void bind_cache(nb::module_& m);
void bind_controller(nb::module_& m);
void bind_decoder(nb::module_& m);
void bind_formats(nb::module_& m);
void bind_networks(nb::module_& m);

namespace {

// The sum of all 8-byte words, read as the kernels read weights: in order, prefetching ahead.
std::uint64_t read_bytes(
    const nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& bytes) {
    constexpr std::size_t line = 64, ahead = 2560, words = line / sizeof(std::uint64_t);
    const std::uint8_t* p = bytes.data();
    const std::size_t num_lines = bytes.shape(0) / line;
    GilRelease unlocked;
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
    const auto tuple = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
    Py_ssize_t i = 0;
    for (const T& value : values) PyTuple_SetItem(tuple.ptr(), i++, nb::cast(value).release().ptr());
    return tuple;
}

std::optional<nb::tuple> continuation(const SuffixIndex& self, const std::vector<int>& context,
                                      double score, int most, int num_nodes, double factor,
                                      double offset, double min_token_prob,
                                      int min_depth) {
    if (!(factor >= 0 && offset >= 0)) throw nb::value_error("nodes granted must not be negative");
    const auto best =
        self.continuation(context, {most, num_nodes, factor, offset, min_token_prob, min_depth}, score);
    if (!best) return std::nullopt;
    return nb::make_tuple(tuple_of(best->tokens), tuple_of(best->parents),
                          tuple_of(best->confidence), best->score);
}

template <class T>
std::span<const T> span_of(const Array1<const T>& array) {
    return {array.data(), array.shape(0)};
}

void learn(LiveTable& self, const std::vector<int>& tokens, const std::vector<int>& likeliest,
           const std::vector<float>& probs) {
    if (likeliest.size() != probs.size()) throw nb::value_error("as many tokens as probabilities");
    self.learn(tokens, likeliest, probs);
}

nb::tuple guess_tree(const std::vector<int>& context, const FileTable* file, const LiveTable& live,
                     const std::vector<const SuffixIndex*>& indexes, int num_nodes,
                     double min_chance, const std::optional<TreeNoise>& noise) {
    const GuessTree tree = grow_tree({.num_nodes = num_nodes,
                                      .ngrams = NGramModel{file, live, indexes},
                                      .context = context,
                                      .noise = noise},
                                     min_chance);
    return nb::make_tuple(tuple_of(tree.tokens), tuple_of(tree.parents), tuple_of(tree.probabilities));
}

template <class T>
using Array2 = nb::ndarray<const T, nb::ndim<2>, nb::device::cpu>;

// Tail, tokens, parents and the `TopK` of a verified tree.
VerifiedTree verified_tree(nb::handle given) {
    VerifiedTree tree{.tail = nb::cast<std::vector<int>>(given[0]),
                      .tokens = nb::cast<std::vector<int>>(given[1]),
                      .parents = nb::cast<std::vector<int>>(given[2])};
    const nb::handle top = given[3];
    const auto ids = nb::cast<Array2<std::int64_t>>(top[0], false);
    const auto logits = nb::cast<Array2<float>>(top[1], false);
    const auto log_sums = nb::cast<Array1<const float>>(top[2], false);
    const std::size_t num_rows = tree.tokens.size() + 1, k = ids.shape(1);
    const auto has_shape = [&](const auto& array) {
        return array.shape(0) == num_rows && array.shape(1) == k && (k < 2 || array.stride(1) == 1);
    };
    if (tree.parents.size() != tree.tokens.size() || !has_shape(ids) || !has_shape(logits) ||
        log_sums.shape(0) != num_rows)
        throw nb::value_error("a row for the tail and one for each node");
    for (std::size_t i = 0; i < tree.parents.size(); ++i)
        if (tree.parents[i] < -1 || tree.parents[i] >= static_cast<int>(i))
            throw nb::value_error("parents come before their children");
    tree.ids = ids.data();
    tree.logits = logits.data();
    tree.log_sums = log_sums.data();
    tree.k = k;
    tree.id_stride = ids.stride(0);
    tree.logit_stride = logits.stride(0);
    return tree;
}

// The arrays belong to the tuples in the list.
void learn_trees(LiveTable& self, const nb::sequence& trees) {
    std::vector<VerifiedTree> read;
    for (nb::handle tree : trees) read.push_back(verified_tree(tree));
    self.learn_trees(read);
}

// A tree for each text, which is document 0 of its index.
nb::list grow_trees(const std::vector<const SuffixIndex*>& texts, const SuffixIndex& shared,
                    const FileTable* file, const LiveTable& live,
                    const std::vector<int>& num_nodes, double min_chance, const Noises& noises) {
    if (num_nodes.size() != texts.size() || (!noises.empty() && noises.size() != texts.size()))
        throw nb::value_error("as many budgets and noises as texts");
    nb::list trees;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        trees.append(guess_tree(texts[i]->last_tokens(0), file, live, {&shared, texts[i]},
                                num_nodes[i], min_chance, noise_of(noises, i)));
    }
    return trees;
}

}  // namespace
}  // namespace forerun

NB_MODULE(_native, m) {
    using namespace forerun;
#ifdef NDEBUG
    nb::set_leak_warnings(false);  // a thread that is cut off at exit keeps what it holds
#endif
    m.doc() = "CPU kernels of forerun; use them through forerun.model.kernels.";
    m.def("checked_kernels", &checked_kernels, "Names of the kernels.");
    m.def(
        "emulate_tiles",
        [](std::uintptr_t address) {
            emulate_tiles(*reinterpret_cast<decltype(&avx512_amx::flat_linear)*>(address));
        },
        "address"_a, "Take the pointer to a function of another library in place of AMX's, for tests.");
    m.def(
        "wrong_kernels",
        [](const std::string& isa, const std::string& broken) {
            return wrong_kernels(kernels_for(isa), broken);
        },
        "isa"_a, "broken"_a = "",
        "Kernels of an instruction set without the portable kernels' bits; tests break one first.");
    m.def(
        "peak",
        [](const std::string& isa, int num_rounds, bool is_float) {
            if (num_rounds < 0) throw nb::value_error("num_rounds must not be negative");
            const Kernels& kernels = kernels_for(isa);
            GilRelease unlocked;
            std::int32_t kept = 0;
            return (is_float ? kernels.float_peak : kernels.peak)(num_rounds, &kept);
        },
        "isa"_a, "num_rounds"_a, "is_float"_a = false,
        "Does dot products on registers, of int8 or floats, and nothing else; returns how many multiplications.");
    m.def("read_bytes", &read_bytes, "bytes"_a.noconvert(),
          "Reads whole lines of 64 bytes as fast as it can; the sum of their 8-byte words.");
    nb::class_<SuffixIndex>(m, "SuffixIndex", "Documents, sorted by what stands before a place.")
        .def(nb::init<int, std::optional<std::size_t>>(), "max_depth"_a, "capacity"_a = nb::none())
        .def("extend", &SuffixIndex::extend, "document"_a, "tokens"_a)
        .def("occurrences", &SuffixIndex::occurrences, "context"_a, "most"_a)
        .def("continuation", &continuation, "context"_a, "score"_a, "most"_a, "num_nodes"_a,
             "factor"_a, "offset"_a, "min_token_prob"_a, "min_depth"_a = 1)
        .def("__sizeof__", &SuffixIndex::nbytes)
        .def_prop_ro("num_tokens", &SuffixIndex::num_tokens);
    nb::class_<LiveTable>(m, "LiveTable", "Learns which tokens come next.")
        .def(nb::init<int, std::size_t, std::uint32_t>(), "order"_a, "nbytes"_a,
             "most_age"_a = UINT32_MAX)
        .def("learn", &learn, "tokens"_a, "likeliest"_a, "probs"_a)
        .def("learn_trees", &learn_trees, "trees"_a)
        .def("entries",
             [](const LiveTable& self) {
                 const std::string entries = self.entries();
                 return nb::bytes(entries.data(), entries.size());
             })
        .def("__sizeof__", &LiveTable::nbytes)
        .def_prop_ro("order", &LiveTable::order);
    nb::class_<FileTable>(m, "FileTable", "Next tokens as a file has them; its arrays are kept.")
        .def(
            "__init__",
            [](FileTable* self, const Array1<const std::uint32_t>& offsets,
               const Array1<const std::uint8_t>& data, int token_nbytes) {
                new (self) FileTable(span_of(offsets), span_of(data), token_nbytes);
            },
            "offsets"_a.noconvert(), "data"_a.noconvert(), "token_nbytes"_a,
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def("__sizeof__", &FileTable::nbytes);
    m.def(
        "draw",
        [](const Array1<const float>& logits, float factor, std::uint64_t key, const std::string& isa) {
            return draw(kernels_for(isa), {.key = key, .factor = factor}, logits.data(),
                        static_cast<int>(logits.shape(0)));
        },
        "logits"_a.noconvert(), "factor"_a, "key"_a, "isa"_a = "auto",
        "A token of softmax(factor logits), by the noise of the key; -1: not all are numbers.");
    m.def(
        "largest_scores",
        [](const Array1<const float>& logits, const std::optional<Array1<const std::int32_t>>& tokens,
           float factor, std::uint64_t key, int k, const std::string& isa) {
            const int size = static_cast<int>(logits.shape(0));
            if (k < 1) throw nb::value_error("k must be at least 1");
            if (tokens && tokens->shape(0) != logits.shape(0))
                throw nb::value_error("as many tokens as logits");
            const std::int32_t* ids = tokens ? tokens->data() : nullptr;
            std::vector<Scored> found(k);
            find_largest(kernels_for(isa), {.key = key, .factor = factor, .ids = ids},
                         logits.data(), size, k, found.data());
            std::vector<int> places;
            for (const Scored& each : found)
                if (each.id != kNoScore.id) places.push_back(each.id);
            return places;
        },
        "logits"_a.noconvert(), "tokens"_a.noconvert().none(), "factor"_a, "key"_a, "k"_a,
        "isa"_a = "auto", "Where the k largest scores stand: factor logits with the tokens' noise.");
    m.def(
        "gumbel",
        [](std::uint64_t key, const Array1<const std::int32_t>& tokens,
           const nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>& out,
           const std::string& isa) {
            if (tokens.shape(0) != out.shape(0)) throw nb::value_error("as many tokens as numbers");
            kernels_for(isa).noise(key, tokens.data(), static_cast<int>(tokens.shape(0)),
                                   out.data());
        },
        "key"_a, "tokens"_a.noconvert(), "out"_a.noconvert(), "isa"_a = "auto",
        "Write the sampler's noise of tokens.");
    nb::class_<TreeNoise>(m, "TreeNoise", "The sampler's noise below a text's last token.")
        .def(
            "__init__",
            [](TreeNoise* self, std::uint64_t seed, std::uint64_t stream, std::uint64_t position,
               double temperature, double top_p, double min_p, std::size_t top_k, double spread) {
                new (self)
                    TreeNoise{seed, stream, position, temperature, top_p, min_p, top_k, spread};
            },
            "seed"_a, "stream"_a, "position"_a, "temperature"_a = 1.0, "top_p"_a = 1.0,
            "min_p"_a = 0.0, "top_k"_a = 0, "spread"_a = kSpread)
        .def(
            "see",
            [](const TreeNoise& self, int depth, const nb::dict& probabilities) {
                Probabilities next;
                for (const auto& [token, p] : probabilities)
                    next.push_back({nb::cast<int>(token), nb::cast<double>(p)});
                self.see(depth, next);
                nb::dict seen;
                for (const auto& [token, p] : next) seen[nb::int_(token)] = p;
                return seen;
            },
            "depth"_a, "probabilities"_a,
            "The probabilities that tokens at a depth are the target's choice.");
    m.def("grow_tree", &guess_tree, "context"_a, "file"_a.none(), "live"_a, "indexes"_a,
          "num_nodes"_a, "min_chance"_a, "noise"_a = nb::none(),
          "The likeliest continuations, best first.");
    m.def("grow_trees", &grow_trees, "texts"_a, "shared"_a, "file"_a.none(), "live"_a, "num_nodes"_a,
          "min_chance"_a, "noises"_a = Noises{},
          "The likeliest continuations of each text, best first.");
    bind_cache(m);
    bind_controller(m);
    bind_decoder(m);
    bind_formats(m);
    bind_networks(m);
}
