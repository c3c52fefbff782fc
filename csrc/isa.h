// Which instruction sets were compiled in, which this processor can run, and which one to use.

#pragma once

#include <string>
#include <vector>

#include "types.h"

namespace forerun {

// Those this processor can run, best first.
std::vector<std::string> runnable_isas();
// "auto" or a name. "auto" takes the best one that agrees with the portable kernels here.
// Throws std::invalid_argument for one that is unknown or cannot run here.
const Kernels& kernels_for(const std::string& name);
// The kernels whose results on a small sample have not the portable kernels' bits; none if all is
// well.
std::vector<std::string> wrong_kernels(const Kernels& kernels);

// For tests of that check: the names in the table, and a table with one kernel wrong on purpose.
std::vector<std::string> checked_kernels();
Kernels broken(Kernels kernels, const std::string& kernel);

}  // namespace forerun
