// Which instruction sets were compiled in, which this processor can run, and which one to use.

#pragma once

#include <string>
#include <vector>

#include "types.h"

namespace forerun {

std::vector<std::string> compiled_isas();
// Those this processor can run, best first.
std::vector<std::string> runnable_isas();
// "auto" or a name. "auto" takes the best one that agrees with the portable kernels here.
// Throws std::invalid_argument for one that is unknown or cannot run here.
const Kernels& kernels_for(const std::string& name);
// Whether all its results on a small sample have the portable kernels' bits.
bool agrees_with_portable(const Kernels& kernels);

}  // namespace forerun
