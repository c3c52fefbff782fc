// What the Python faces share: arrays as arguments, and their checks, which raise ValueError.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

namespace forerun {

template <class T>
using Array1 = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using Array2 = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

constexpr int kLargest = 1 << 28;  // no dimension of a model or a cache is larger

inline void need(bool holds, const std::string& message) {
    if (!holds) throw nanobind::value_error(message.c_str());
}

}  // namespace forerun
