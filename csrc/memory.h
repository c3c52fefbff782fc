// Zeroed memory, aligned to cache lines, in huge pages where the system has them: streaming weights
// through small pages misses the processor's table of them all the time.

#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

namespace forerun {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Gives the system the whole pages of a range that nothing is read from any more; they are zero when next touched.
inline void return_pages(std::uint8_t* first, std::size_t nbytes) {
    const auto size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto from = reinterpret_cast<std::uintptr_t>(first);
    const std::uintptr_t start = (from + size - 1) / size * size, stop = (from + nbytes) / size * size;
    if (start < stop) madvise(reinterpret_cast<void*>(start), stop - start, MADV_DONTNEED);
}

class Buffer {
  public:
    Buffer() = default;
    // A mapping of its own.
    explicit Buffer(std::size_t nbytes) : nbytes_(nbytes) {
        if (nbytes == 0) return;
        void* p = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        // Only advice: without it everything works, a little slower.
        if (nbytes >= kHugePage) madvise(p, nbytes, MADV_HUGEPAGE);
#endif
        data_.reset(static_cast<std::uint8_t*>(p),
                    [nbytes](void* mapped) { munmap(mapped, nbytes); });
    }
    // A part of another buffer, whose mapping lives as long as one of its parts; its memory goes when it does.
    Buffer(const Buffer& whole, std::size_t offset, std::size_t nbytes) : nbytes_(nbytes) {
        data_.reset(whole.data_.get() + offset, [mapping = whole.data_, nbytes](std::uint8_t* part) {
            return_pages(part, nbytes);
        });
    }

    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_.get());
    }
    std::size_t nbytes() const { return nbytes_; }

  private:
    std::shared_ptr<std::uint8_t> data_;
    std::size_t nbytes_ = 0;
};

// Buffers too small for huge pages of their own, side by side in a mapping.
class Arena {
  public:
    Buffer take(std::size_t nbytes) {
        if (nbytes == 0 || nbytes >= kHugePage) return Buffer(nbytes);
        const std::scoped_lock lock(busy_);
        if (mapping_.nbytes() - used_ < nbytes) {
            mapping_ = Buffer(8 * kHugePage);
            used_ = 0;
        }
        const std::size_t offset = used_;
        used_ += (nbytes + 63) / 64 * 64;
        return Buffer(mapping_, offset, nbytes);
    }

  private:
    std::mutex busy_;
    Buffer mapping_;
    std::size_t used_ = 0;
};

}  // namespace forerun
