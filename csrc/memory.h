// Zeroed memory, aligned to cache lines; large blocks ask for huge pages, which streaming weights
// needs.

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace forerun {

class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(std::size_t nbytes) : nbytes_(nbytes) {
        if (nbytes == 0) return;
        void* p = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<std::uint8_t*>(p);
#ifdef MADV_HUGEPAGE
        constexpr std::size_t huge = std::size_t{2} << 20;
        if (nbytes >= huge)
            madvise(p, nbytes,
                    MADV_HUGEPAGE);  // a wish: without it everything works, a little slower
#endif
    }
    Buffer(Buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(nbytes_, other.nbytes_);
        return *this;
    }
    ~Buffer() {
        if (data_) munmap(data_, nbytes_);
    }

    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    std::size_t nbytes() const { return nbytes_; }

  private:
    std::uint8_t* data_ = nullptr;
    std::size_t nbytes_ = 0;
};

}  // namespace forerun
