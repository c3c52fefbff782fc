// The blocks of every format, and the table of all formats.

#include "kernels/blocks.h"

#include <stdexcept>

#include "kernels/formats.h"

namespace forerun {

std::span<const WeightFormat> weight_formats() { return kFormats; }

const WeightFormat& weight_format(const std::string& name) {
    std::string known;
    for (const WeightFormat& format : kFormats) {
        if (name == format.name) return format;
        known += std::string(known.empty() ? "" : ", ") + format.name;
    }
    throw std::invalid_argument("weight format '" + name +
                                "' has no kernel (those that have: " + known + ")");
}

}  // namespace forerun
