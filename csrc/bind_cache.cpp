// The Python face of a cache of keys, values and recurrent states. A wrong argument raises ValueError.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "bind_config.h"
#include "model/model.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

KvForms kv_forms_of(const std::string& name) {
    const auto both = [](KvForm form) { return KvForms{form, form}; };
    if (name == "fp32") return both(KvForm::F32);
    if (name == "fp16") return both(KvForm::F16);
    if (name == "int8") return both(KvForm::Int8);
    if (name == "int4") return both(KvForm::Int4);
    need(name == "k8v4", "unknown form of keys and values '" + name + "'");
    return {KvForm::Int8, KvForm::Int4};
}

// The bytes of all blocks as they lie in memory, (blocks, layers, heads) pages: for tests.
nb::object memory(nb::handle self) {
    return nb::cast(view(nb::cast<const Cache&>(self).memory(), self));
}

nb::object writable(std::uint8_t* data, std::size_t nbytes, nb::handle self) {
    return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(data, {nbytes}, self));
}

// The bytes of a block, (layers, heads) pages, to be read and written.
nb::object block(nb::handle self, int block) {
    const Cache& cache = nb::cast<const Cache&>(self);
    return writable(cache.block_bytes(block), cache.block_nbytes, self);
}

// The bytes of a recurrent state, to be read and written: of a layer after another (heads, key dim,
// value dim) and what was convolved (taps - 1, channels).
nb::object state(nb::handle self, int state) {
    const States& states = nb::cast<const Cache&>(self).states;
    return writable(states.state_bytes(state), states.state_nbytes, self);
}

}  // namespace

void bind_cache(nb::module_& m) {
    nb::class_<Cache>(m, "Cache", "Keys and values of some sequences.")
        .def(
            "__init__",
            [](Cache* self, const std::vector<std::pair<int, int>>& heads, int num_slots,
               int max_len, const std::string& form, int num_blocks, nb::sequence recurrent,
               int hidden_size, int num_states, int draft_rows, const std::vector<int>& value_dims) {
                std::vector<KvShape> layers;
                for (const auto& [count, width] : heads) layers.push_back({count, width});
                need(value_dims.empty() || value_dims.size() == layers.size(),
                     "each layer's values need a width");
                for (std::size_t i = 0; i < value_dims.size(); ++i) layers[i].value_dim = value_dims[i];
                std::vector<MixerShape> states;
                for (nb::handle layer : recurrent) states.push_back(mixer_shape_of(layer, hidden_size));
                need(draft_rows >= 0 && draft_rows <= 1 << 16, "a draft's rows are out of range");
                new (self) Cache(std::move(layers), num_slots, max_len, kv_forms_of(form), num_blocks,
                                 std::move(states), num_states, draft_rows);
            },
            "heads"_a, "num_slots"_a, "max_len"_a, "form"_a, "num_blocks"_a = 0,
            "recurrent"_a = nb::make_tuple(), "hidden_size"_a = 0, "num_states"_a = 0,
            "draft_rows"_a = kChunk, "value_dims"_a = std::vector<int>{})
        .def_prop_ro_static("block_rows", [](nb::handle) { return kChunk; })
        .def_ro("block_nbytes", &Cache::block_nbytes)
        .def("place", &Cache::place, "slot"_a, "index"_a, "block"_a)
        .def("move", &Cache::move, "slot"_a, "rows"_a, "start"_a)
        .def("copy_block", &Cache::copy_block, "source"_a, "target"_a)
        .def("memory", &memory)
        .def("block", &block, "block"_a)
        .def_prop_ro("state_nbytes", [](const Cache& self) { return self.states.state_nbytes; })
        .def_prop_ro("rows_nbytes", [](const Cache& self) { return self.states.rows_nbytes; })
        .def(
            "place_state",
            [](Cache& self, int slot, int state, int rows) {
                self.check_slot(slot);
                self.states.place(slot, state, rows);
            },
            "slot"_a, "state"_a, "rows"_a)
        .def("clear_state", [](Cache& self, int state) { self.states.clear(state); }, "state"_a)
        .def(
            "copy_state", [](Cache& self, int source, int target) { self.states.copy(source, target); },
            "source"_a, "target"_a)
        .def("drop_state", [](Cache& self, int state) { self.states.drop(state); }, "state"_a)
        .def(
            "advance",
            [](Cache& self, Runtime& runtime, int slot, int rows) {
                self.check_slot(slot);
                self.states.advance(runtime, slot, rows);
            },
            "runtime"_a, "slot"_a, "rows"_a, nb::call_guard<GilRelease>())
        .def("state", &state, "state"_a)
        .def("nbytes", &Cache::nbytes);
}

}  // namespace forerun
