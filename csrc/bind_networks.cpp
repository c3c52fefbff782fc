// The Python face of the networks that draft.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <ranges>
#include <tuple>

#include "bind.h"
#include "drafters/draft_network.h"
#include "drafters/block_network.h"
#include "drafters/computed_network.h"
#include "drafters/eagle_network.h"
#include "drafters/partner_value.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

using Judged = std::tuple<int, double, double, double, int>;  // a `Credit`

void set(DraftNetwork& self, const std::string& name, const std::string& format, std::size_t num_in,
         const Array2<const std::uint8_t>& rows) {
    const WeightFormat& f = weight_format(format);
    need(rows.shape(0) >= 1 && rows.shape(0) <= kLargest && num_in >= 1 && num_in <= kLargest,
         name + ": its shape is out of range");
    need(rows.shape(1) == stored_row_nbytes(f, static_cast<int>(num_in)),
         name + ": the data has not the size of its shape");
    GilRelease unlocked;
    self.set(name, pack(self.kernels(), f, static_cast<int>(rows.shape(0)), static_cast<int>(num_in),
                        rows.data(), nullptr, self.num_threads()));
}

void set_norm(DraftNetwork& self, const std::string& name, const Array1<const float>& weight,
              const std::optional<Array1<const float>>& bias, float eps) {
    std::span<const float> added;
    if (bias) added = {bias->data(), bias->shape(0)};
    self.set_norm(name, {weight.data(), weight.shape(0)}, added, eps);
}

// The weights of a matrix as the kernels mean them: for tests.
void unpack(const DraftNetwork& self, const std::string& name, const Array2<float>& out) {
    const Packed* packed = self.find(name);
    need(packed && packed->linear.tiles, name + " is not a matrix that was set");
    const Linear& linear = packed->linear;
    need(out.shape(0) == std::size_t(linear.num_out) && out.shape(1) == std::size_t(linear.num_in),
         "out has the wrong shape");
    for (int row = 0; row < linear.num_out; ++row)
        unpack_row(linear, row, out.data() + row * out.shape(1));
}

// What tables and texts say beside a network, of each sequence.
struct TextNGramModel {
    std::vector<const SuffixIndex*> texts;
    const SuffixIndex* shared;
    const FileTable* file;
    const LiveTable* live;

    NGramModel model(std::size_t i) const {
        return {file, *live, std::vector<const SuffixIndex*>{shared, texts.at(i)}};
    }
};

nb::list list_of(const std::vector<GrowingTree>& trees) {
    nb::list out;
    for (const auto& [tokens, parents, probabilities] : trees | std::views::transform(&GrowingTree::tree))
        out.append(nb::make_tuple(nb::tuple(nb::cast(tokens)), nb::tuple(nb::cast(parents)),
                                  nb::tuple(nb::cast(probabilities))));
    return out;
}

// A network whose steps are computed in Python: `Scores` of each, from a number and a list of steps.
class PythonSteps {
  public:
    explicit PythonSteps(nb::callable take) : take_(std::move(take)) {}

    // Takes the interpreter's lock, and holds the arrays until the next step.
    std::vector<StepLogits> operator()(int number, const std::vector<Step>& steps) {
        nb::gil_scoped_acquire locked;
        rows_.clear();
        nb::list given;
        for (const Step& step : steps) given.append(nb::cast(step));
        std::vector<StepLogits> found;
        for (nb::handle each : nb::borrow<nb::sequence>(take_(number, given))) {
            Row& row = rows_.emplace_back();
            StepLogits& logits = found.emplace_back();
            row.logits = nb::cast<Array1<const float>>(each.attr("logits"), false);
            logits.logits = {row.logits.data(), row.logits.shape(0)};
            const nb::object tokens = each.attr("tokens");
            if (tokens.is_none()) continue;
            row.tokens = nb::cast<Array1<const std::int64_t>>(tokens, false);
            logits.tokens = {row.tokens.data(), row.tokens.shape(0)};
            need(logits.tokens.size() == logits.logits.size(), "as many tokens as logits");
        }
        return found;
    }

  private:
    struct Row {
        Array1<const float> logits;
        Array1<const std::int64_t> tokens;
    };

    nb::callable take_;
    std::vector<Row> rows_;
};

// Computes rows in Python, from (rows, 5) int32 as in `StepRow`: logits (rows, tokens of the head) fp32, and
// confidences (rows) fp64 or None.
class PythonRows {
  public:
    explicit PythonRows(nb::callable compute) : compute_(std::move(compute)) {}

    // Takes the interpreter's lock, and holds the arrays until the next step.
    ComputedRows operator()(std::span<const StepRow> rows) {
        nb::gil_scoped_acquire locked;
        const nb::ndarray<nb::numpy, const std::int32_t, nb::ndim<2>> given(&rows.data()->sequence, {rows.size(), 5});
        const auto found = nb::cast<nb::tuple>(compute_(nb::cast(given, nb::rv_policy::copy)));
        logits_ = nb::cast<Array2<const float>>(found[0], false);
        confidences_.reset();
        if (!found[1].is_none()) confidences_ = nb::cast<Array1<const double>>(found[1], false);
        ComputedRows computed{{logits_.data(), logits_.size()}, {}};
        if (confidences_) computed.confidences = {confidences_->data(), confidences_->size()};
        return computed;
    }

  private:
    static_assert(sizeof(StepRow) == 5 * sizeof(std::int32_t));

    nb::callable compute_;
    Array2<const float> logits_;
    std::optional<Array1<const double>> confidences_;
};

// A partner and how it is asked, as Python names it. Every list has an entry a sequence; `rows` are those of `states`,
// or slots where there are none; none: 0, 1, ...
struct Asked {
    nb::object who;  // a network, or a callable that computes steps
    std::vector<int> num_steps;
    double min_doubt, share;
    float temperature;
    bool knows_paths;
    std::optional<std::vector<int>> rows;
    std::optional<Array2<const float>> states;

    std::vector<Seed> seeds(std::size_t count, std::size_t width) const {
        need(!rows || rows->size() == count, "a row is needed for every sequence");
        need(!states || states->shape(1) == width, "states must be (rows, hidden size)");
        std::vector<Seed> found(count);
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t slot = found[i].slot = rows ? (*rows)[i] : static_cast<int>(i);
            if (!states) continue;
            need(slot < states->shape(0), "a row of states is needed for every token");
            found[i].state = states->data() + slot * width;
        }
        return found;
    }
};

// A tree and what was said while it grew.
struct Trace {
    GuessTree tree;
    std::vector<Word> words;
};

// Grows trees with partners; no noises: all requests are greedy. Also returns how many steps each partner took, by
// sequence, and what they said.
nb::tuple grow_trees_with(const std::vector<const Asked*>& asked, std::vector<int> tokens,
                          const std::vector<int>& num_nodes, double min_chance, const TextNGramModel* ngrams,
                          const Noises& noises) {
    const std::size_t count = tokens.size();
    need(asked.size() <= kMaxPartners, "partners must be at most " + std::to_string(kMaxPartners));
    need(num_nodes.size() == count, "a number of nodes is needed for every sequence");
    need(noises.empty() || noises.size() == count, "a noise, or none, is needed for every sequence");
    need(!ngrams || ngrams->texts.size() == count, "a text is needed for every sequence");
    std::vector<SequenceRequest> sequences(count);
    std::vector<std::unique_ptr<SteppingPartner>> stepping;  // are let go of under the lock
    std::vector<Partner*> partners;
    GrowthLimits limits{.min_chance = min_chance};
    for (const Asked* each : asked) {
        need(each->num_steps.size() == count, "a number of steps is needed for every sequence");
        for (std::size_t i = 0; i < count; ++i) {
            need(each->num_steps[i] >= 0 && each->num_steps[i] <= kMaxSteps,
                 "steps must be 0 to " + std::to_string(kMaxSteps));
            sequences[i].num_steps[partners.size()] = each->num_steps[i];
        }
        PartnerRule rule{.knows_paths = each->knows_paths};
        if (nb::isinstance<DraftNetwork>(each->who)) {
            auto& network = nb::cast<DraftNetwork&>(each->who);
            std::vector<Seed> seeds = each->seeds(count, network.target().shape().hidden_size);
            GilRelease unlocked;
            rule = network.begin_draft(std::move(seeds), tokens);
            partners.push_back(&network);
        } else {
            need(each->temperature > 0, "temperature must be above 0");
            auto steps = std::make_shared<PythonSteps>(nb::cast<nb::callable>(each->who));
            stepping.push_back(std::make_unique<SteppingPartner>(
                [steps](int number, const std::vector<Step>& taken) { return (*steps)(number, taken); },
                each->temperature));
            partners.push_back(stepping.back().get());
        }
        rule.min_doubt = each->min_doubt;
        rule.share = each->share;
        limits.partners.push_back(rule);
    }
    for (std::size_t i = 0; i < count; ++i) {
        SequenceRequest& one = sequences[i];
        one.token = tokens[i];
        one.num_nodes = num_nodes[i];
        one.noise = noise_of(noises, i);
        if (!ngrams) continue;
        one.ngrams = ngrams->model(i);
        one.context = ngrams->texts[i]->last_tokens(0);
    }
    std::vector<GrowingTree> trees;
    {
        GilRelease unlocked;
        trees = grow(std::move(sequences), limits, partners);
    }
    std::vector<std::vector<int>> taken(partners.size());
    for (std::size_t p = 0; p < partners.size(); ++p)
        for (const GrowingTree& tree : trees) taken[p].push_back(tree.num_taken(static_cast<int>(p)));
    nb::list guessed = list_of(trees), said;
    for (GrowingTree& tree : trees) said.append(nb::cast(Trace{std::move(tree.tree), std::move(tree.words)}));
    return nb::make_tuple(guessed, taken, said);
}

// A size of a network's configuration.
int size_of(nb::handle config, const char* name, int least = 1) {
    const int size = get<int>(config, name);
    need(size >= least && size <= 1 << 20, std::string(name) + " is out of range");
    return size;
}

// The shape of layers as a network's configuration has them, with names of Llama's.
LayeredShape layered_shape_of(nb::handle config, int num_slots, int max_len) {
    need(num_slots >= 1 && num_slots <= 1 << 16 && max_len >= 1 && max_len <= 1 << 24,
         "num_slots or max_len is out of range");
    return {.num_layers = 1,
            .hidden_size = size_of(config, "hidden_size"),
            .attention_width = 0,
            .intermediate_size = size_of(config, "intermediate_size"),
            .num_heads = size_of(config, "num_attention_heads"),
            .num_kv_heads = size_of(config, "num_key_value_heads"),
            .head_dim = size_of(config, "head_dim"),
            .num_aux_layers = static_cast<int>(get<std::vector<int>>(config, "layers").size()),
            .state_size = size_of(config, "state_width"),
            .num_slots = num_slots,
            .max_len = max_len,
            .num_guessed = kMaxSteps};
}

void new_eagle(EagleNetwork* self, Runtime& runtime, Decoder& target, nb::handle config, int num_slots, int max_len) {
    new (self) EagleNetwork(runtime, target, layered_shape_of(config, num_slots, max_len),
                            get<bool>(config, "norm_output"), get<bool>(config, "norm_before_residual"));
}

void new_block(BlockNetwork* self, Runtime& runtime, Decoder& target, nb::handle config, int num_slots, int max_len) {
    LayeredShape shape = layered_shape_of(config, num_slots, max_len);
    shape.windows = get<std::vector<int>>(config, "windows");
    shape.bidirectional = get<std::vector<bool>>(config, "bidirectional");
    shape.num_layers = static_cast<int>(shape.windows.size());
    shape.num_guessed = size_of(config, "block_size");
    need(shape.num_layers >= 1 && shape.num_layers <= 64, "layers must be 1 to 64");
    new (self) BlockNetwork(runtime, target, shape,
                            {shape.num_guessed, get<bool>(config, "sample_from_anchor"),
                             get<int>(config, "mask_token_id"), size_of(config, "markov_rank", 0)});
}

void prefill(LayeredNetwork& self, int slot, const std::vector<int>& tokens,
             const Array2<const float>& states) {
    const std::size_t width = static_cast<std::size_t>(self.shape().num_aux_layers) * self.shape().state_size;
    need(states.shape(0) == tokens.size() && states.shape(1) == width,
         "states must be (tokens, layers that are read x state size)");
    GilRelease unlocked;
    self.prefill(slot, tokens, states.data());
}

}  // namespace

void bind_networks(nb::module_& m) {
    nb::class_<TextNGramModel>(m, "TextNGramModel", "What tables and texts say beside a network.")
        .def(
            "__init__",
            [](TextNGramModel* self, std::vector<const SuffixIndex*> texts, const SuffixIndex& shared,
               const FileTable* file, const LiveTable& live) {
                new (self) TextNGramModel{std::move(texts), &shared, file, &live};
            },
            "texts"_a, "shared"_a, "file"_a.none(), "live"_a, nb::keep_alive<1, 2>(),
            nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>());

    nb::class_<Step>(m, "Step", "A token that a partner takes: of a sequence, after its step `parent` (-1: its first).")
        .def_ro("sequence", &Step::sequence)
        .def_ro("parent", &Step::parent)
        .def_ro("token", &Step::token)
        .def_ro("depth", &Step::depth)
        .def_ro("path", &Step::path);

    nb::class_<Asked>(m, "Partner", "Who is asked what may follow nodes, and how: a network, or what computes steps.")
        .def(
            "__init__",
            [](Asked* self, nb::object who, std::vector<int> num_steps, double min_doubt, double share,
               float temperature, bool knows_paths, std::optional<std::vector<int>> rows,
               std::optional<Array2<const float>> states) {
                new (self) Asked{std::move(who), std::move(num_steps), min_doubt, share, temperature, knows_paths,
                                 std::move(rows), std::move(states)};
            },
            "who"_a, "num_steps"_a, "min_doubt"_a = 0.0, "share"_a = 1.0, "temperature"_a = 1.0f,
            "knows_paths"_a = false, "rows"_a = nb::none(), "states"_a.noconvert() = nb::none());

    nb::class_<Trace>(m, "Trace", "What partners proposed while a tree grew, to learn from the tokens that followed.")
        .def(
            "judged",
            [](const Trace& self, const std::vector<int>& tokens) {
                std::vector<Judged> found;
                for (const Credit& each : score_steps(self.words, self.tree, tokens))
                    found.emplace_back(each.partner, each.doubt, each.before, each.own, each.brought);
                return found;
            },
            "tokens"_a, "Judge the steps by the tokens that came: `Credit` of each.")
        .def(
            "teach",
            [](const Trace& self, const std::vector<int>& tokens, const std::vector<PartnerValue*>& partners) {
                std::vector<std::vector<Credit>> found(partners.size());
                for (const Credit& each : score_steps(self.words, self.tree, tokens))
                    found.at(static_cast<std::size_t>(each.partner)).push_back(each);
                for (std::size_t i = 0; i < partners.size(); ++i) partners[i]->learn(found[i]);
            },
            "tokens"_a, "partners"_a, "Let partners learn from the tokens that came.");

    nb::class_<PartnerValue>(m, "PartnerValue", "What a partner is worth: its share, and from which doubt on it pays.")
        .def(nb::init<double, double>(), "share"_a, "gain"_a)
        .def_prop_ro("share", &PartnerValue::share)
        .def_ro_static("MOST_DOUBT", &PartnerValue::kMostDoubt)
        .def(
            "learn",
            [](PartnerValue& self, const std::vector<Judged>& steps) {
                std::vector<Credit> found;
                for (const auto& [partner, doubt, before, own, brought] : steps)
                    found.push_back({partner, doubt, before, own, brought});
                self.learn(found);
            },
            "steps"_a, "Take its steps of one draft, as `Trace.judged` returns them.")
        .def("doubt", &PartnerValue::doubt, "least"_a, "cost"_a = nb::none(),
             "Return the doubt from which its steps pay, `least` or more; `cost` is that of a step in tokens.");

    m.def("grow", &grow_trees_with, "partners"_a, "tokens"_a, "num_nodes"_a, "min_chance"_a, "ngrams"_a = nullptr,
          "noises"_a = Noises{}, "Grow a tree of every sequence with partners, the cheapest first.");

    nb::class_<DraftNetwork>(m, "DraftNetwork", "What networks that draft for a decoder share.")
        .def("set", &set, "name"_a, "format"_a, "num_in"_a, "rows"_a.noconvert())
        .def("set_norm", &set_norm, "name"_a, "weight"_a.noconvert(), "bias"_a.none(), "eps"_a)
        .def("set_tokens", &DraftNetwork::set_tokens, "ids"_a)
        .def("take_head", &DraftNetwork::take_head)
        .def("set_temperatures", &DraftNetwork::set_temperatures, "temperatures"_a)
        .def("check", &DraftNetwork::check)
        .def("unpack", &unpack, "name"_a, "out"_a.noconvert())
        .def("nbytes", &DraftNetwork::nbytes);

    nb::class_<RecurrentNetwork, DraftNetwork>(m, "RecurrentNetwork",
                                               "A network whose state goes from token to token.")
        .def(
            "__init__",
            [](RecurrentNetwork* self, Runtime& runtime, Decoder& target, int inner_size,
               int num_predict, int max_depth, bool is_lstm, bool scales_input) {
                need(inner_size >= 1 && inner_size <= 1 << 20, "inner_size is out of range");
                need(num_predict >= 1, "num_predict is out of range");
                need(max_depth >= 1 && max_depth <= kMaxSteps, "max_depth is out of range");
                new (self) RecurrentNetwork(runtime, target,
                                            {inner_size, num_predict, max_depth, is_lstm, scales_input});
            },
            "runtime"_a, "target"_a, "inner_size"_a, "num_predict"_a, "max_depth"_a, "is_lstm"_a, "scales_input"_a,
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def("keep_mapped", &RecurrentNetwork::keep_mapped, nb::call_guard<GilRelease>());
    m.def("token_weight", &token_weight, "inner_size"_a, "num_predict"_a,
          "What a recurrent network multiplies embeddings by.");

    nb::class_<MedusaNetwork, DraftNetwork>(m, "MedusaNetwork", "Heads on the target's last state.")
        .def(
            "__init__",
            [](MedusaNetwork* self, Runtime& runtime, Decoder& target, int num_heads, int num_layers) {
                need(num_heads >= 1 && num_heads <= kMaxSteps, "num_heads is out of range");
                need(num_layers >= 1 && num_layers <= 16, "num_layers is out of range");
                new (self) MedusaNetwork(runtime, target, num_heads, num_layers);
            },
            "runtime"_a, "target"_a, "num_heads"_a, "num_layers"_a, nb::keep_alive<1, 2>(),
            nb::keep_alive<1, 3>());

    nb::class_<ComputedNetwork, DraftNetwork>(m, "ComputedNetwork", "A network whose rows a callable computes.")
        .def(
            "__init__",
            [](ComputedNetwork* self, Runtime& runtime, Decoder& target, int max_depth, bool sees_depth_alone,
               nb::callable compute) {
                need(max_depth >= 1 && max_depth <= kMaxSteps, "max_depth is out of range");
                auto rows = std::make_shared<PythonRows>(std::move(compute));
                new (self) ComputedNetwork(runtime, target, max_depth, sees_depth_alone,
                                           [rows](std::span<const StepRow> each) { return (*rows)(each); });
            },
            "runtime"_a, "target"_a, "max_depth"_a, "sees_depth_alone"_a, "compute"_a, nb::keep_alive<1, 2>(),
            nb::keep_alive<1, 3>());

    nb::class_<LayeredNetwork, DraftNetwork>(m, "LayeredNetwork", "Decoder layers with a cache of their own.")
        .def(
            "set_rope",
            [](LayeredNetwork& self, const Array1<const float>& frequencies) {
                self.set_rope({frequencies.data(), frequencies.shape(0)});
            },
            "frequencies"_a.noconvert())
        .def("clear", &LayeredNetwork::clear, "slot"_a)
        .def("reuse", &LayeredNetwork::reuse, "slot"_a, "source"_a, "rows"_a)
        .def("prefill", &prefill, "slot"_a, "tokens"_a, "states"_a.noconvert());

    nb::class_<EagleNetwork, LayeredNetwork>(m, "EagleNetwork", "A decoder layer behind the target.")
        .def("__init__", &new_eagle, "runtime"_a, "target"_a, "config"_a, "num_slots"_a, "max_len"_a,
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>());

    nb::class_<BlockNetwork, LayeredNetwork>(m, "BlockNetwork",
                                             "Decoder layers that fill a block of masks in one call.")
        .def("__init__", &new_block, "runtime"_a, "target"_a, "config"_a, "num_slots"_a, "max_len"_a,
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>());
}

}  // namespace forerun
