// Zeroed memory, aligned to cache lines, in huge pages where the system has them: streaming weights
// through small pages misses the processor's table of them all the time.

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace forerun {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// A mapping of its own.
class Mapping {
  public:
    explicit Mapping(std::size_t nbytes) : nbytes_(nbytes) {
        void* p = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<std::uint8_t*>(p);
#ifdef MADV_HUGEPAGE
        // Only advice: without it everything works, a little slower.
        if (nbytes >= kHugePage) madvise(p, nbytes, MADV_HUGEPAGE);
#endif
    }
    ~Mapping() { munmap(data_, nbytes_); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    std::uint8_t* data() const { return data_; }
    std::size_t nbytes() const { return nbytes_; }

  private:
    std::uint8_t* data_;
    std::size_t nbytes_;
};

class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(std::size_t nbytes) : nbytes_(nbytes) {
        if (nbytes == 0) return;
        mapping_ = std::make_shared<Mapping>(nbytes);
        data_ = mapping_->data();
    }

    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    std::size_t nbytes() const { return nbytes_; }

  private:
    friend class Arena;
    std::shared_ptr<const Mapping> mapping_;
    std::uint8_t* data_ = nullptr;
    std::size_t nbytes_ = 0;
};

// Buffers too small for huge pages of their own, side by side in a mapping that lives as long as
// one of them.
class Arena {
  public:
    Buffer take(std::size_t nbytes) {
        if (nbytes == 0 || nbytes >= kHugePage) return Buffer(nbytes);
        const std::scoped_lock lock(busy_);
        if (!mapping_ || mapping_->nbytes() - used_ < nbytes) {
            mapping_ = std::make_shared<Mapping>(8 * kHugePage);
            used_ = 0;
        }
        Buffer buffer;
        buffer.mapping_ = mapping_;
        buffer.data_ = mapping_->data() + used_;
        buffer.nbytes_ = nbytes;
        used_ += (nbytes + 63) / 64 * 64;
        return buffer;
    }

  private:
    std::mutex busy_;
    std::shared_ptr<const Mapping> mapping_;
    std::size_t used_ = 0;
};

}  // namespace forerun
