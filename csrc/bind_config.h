// From Python's configurations of models to shapes; a wrong one raises ValueError.

#pragma once

#include <nanobind/nanobind.h>

#include "model/model.h"

namespace forerun {

// Of a ModelConfig.
Shape shape_of(nanobind::handle config);

// Of a RecurrentConfig or None.
MixerShape mixer_shape_of(nanobind::handle recurrent, int hidden_size);

}  // namespace forerun
