// What the Python faces share: arrays as arguments, and their checks, which raise ValueError.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>
#include <string>
#include <thread>

#include "model/memory.h"

namespace forerun {

template <class T>
using Array1 = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using Array2 = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

// Gives up the interpreter's lock. A thread that asks for it again while the interpreter ends is ended by Python, which
// unwinds its stack: through a destructor that would be an abort, so such a thread waits here for the process's end.
class GilRelease {
  public:
    GilRelease() : state_(PyEval_SaveThread()) {}
    ~GilRelease() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }
    GilRelease(const GilRelease&) = delete;
    GilRelease& operator=(const GilRelease&) = delete;

  private:
    PyThreadState* const state_;
};

constexpr int kLargest = 1 << 28;  // no dimension of a model or a cache is larger

inline void need(bool holds, const std::string& message) {
    if (!holds) throw nanobind::value_error(message.c_str());
}

template <class Array>
void need_shape(const Array& array, std::initializer_list<std::size_t> shape,
                const std::string& message) {
    need(std::equal(shape.begin(), shape.end(), array.shape_ptr()), message);
}

template <class Array>
auto data(const std::optional<Array>& array) {
    return array ? array->data() : nullptr;
}

inline int dimension(std::size_t size) {
    need(size >= 1 && size <= kLargest, "a weight's shape is out of range");
    return static_cast<int>(size);
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
