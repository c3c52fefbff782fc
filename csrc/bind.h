// What the Python faces share: arrays as arguments, and their checks, which raise ValueError.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "model/memory.h"

namespace forerun {

template <class T>
using Array1 = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using Array2 = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

constexpr int kLargest = 1 << 28;  // no dimension of a model or a cache is larger

inline void need(bool holds, const std::string& message) {
    if (!holds) throw nanobind::value_error(message.c_str());
}

// An attribute of a Python object.
template <class T>
T get(nanobind::handle object, const char* name) {
    return nanobind::cast<T>(object.attr(name));
}

// Bytes that `owner` has, as an array of numpy.
inline nanobind::ndarray<nanobind::numpy, std::uint8_t, nanobind::ndim<1>> view(
    const Buffer& buffer, nanobind::handle owner) {
    return {buffer.as<std::uint8_t>(), {buffer.nbytes()}, owner};
}

}  // namespace forerun
