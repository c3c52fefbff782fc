// Which instruction sets were compiled in, which this processor can run, and which one to use.

#pragma once

#include <string>
#include <vector>

#include "model/types.h"

namespace forerun {

// Those this processor can run, best first.
std::vector<std::string> runnable_isas();
// Takes another library's function for avx512_amx, which can run then: for tests where tiles are emulated.
void emulate_tiles(decltype(&avx512_amx::flat_linear) flat_linear);
// "auto" or a name. "auto" takes the best one that agrees with the portable kernels here.
// Throws std::invalid_argument for one that is unknown or cannot run here.
const Kernels& kernels_for(const std::string& name);
// Names of all kernels, and of those whose results on a small sample have not the portable kernels'
// bits. Tests break one on purpose first.
std::vector<std::string> checked_kernels();
std::vector<std::string> wrong_kernels(Kernels kernels, const std::string& broken = "");

}  // namespace forerun
