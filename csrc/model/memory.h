// Zeroed memory, aligned to cache lines, in huge pages where the system has them: streaming weights
// through small pages misses the processor's table of them all the time.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "platform.h"

namespace forerun {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

class Buffer {
  public:
    Buffer() = default;
    // A mapping of its own.
    explicit Buffer(std::size_t nbytes) : nbytes_(nbytes) {
        if (nbytes == 0) return;
        data_.reset(platform::map(nbytes, kHugePage),
                    [nbytes](std::uint8_t* mapped) { platform::unmap(mapped, nbytes); });
        if (nbytes >= kHugePage) platform::advise_huge_pages(data_.get(), nbytes);
    }
    // Memory that someone else gives back, when the pointer says so.
    Buffer(std::shared_ptr<std::uint8_t> data, std::size_t nbytes)
        : data_(std::move(data)), nbytes_(nbytes) {}

    // Some of it, which keeps all of it.
    Buffer part(std::size_t first, std::size_t nbytes) const {
        return {std::shared_ptr<std::uint8_t>(data_, data_.get() + first), nbytes};
    }

    // From now on in small pages: what is given back of it in parts stays away.
    void use_small_pages() const {
        if (nbytes_ != 0) platform::advise_small_pages(data_.get(), nbytes_);
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

// Buffers side by side in a mapping of whole huge pages, so that no weight begins or ends in small ones. A huge page
// goes back to the system when none of them is left in it: were single pages to stay, between two that are gone, the
// system would fill the huge page with zeros again after a while (khugepaged).
class Arena {
  public:
    Buffer take(std::size_t nbytes) {
        if (nbytes == 0) return {};
        const std::scoped_lock lock(busy_);
        if (!mapping_ || mapping_->memory.nbytes() - mapping_->used < nbytes) {
            if (mapping_) mapping_->trim();
            mapping_ = std::make_shared<Mapping>(std::max(nbytes, kMapping));
        }
        return mapping_->take(mapping_, nbytes);
    }
    // Gives back what the last huge page has behind the buffers; those that are taken later find it in small pages.
    void trim() {
        const std::scoped_lock lock(busy_);
        if (mapping_) mapping_->trim();
    }

  private:
    static constexpr std::size_t kMapping = 32 * kHugePage;

    struct Mapping {
        Buffer memory;
        std::size_t used = 0;
        std::mutex busy;
        std::vector<int> num_parts;  // of a huge page

        explicit Mapping(std::size_t nbytes)
            : memory((nbytes + kHugePage - 1) / kHugePage * kHugePage),
              num_parts(memory.nbytes() / kHugePage + 1) {}

        Buffer take(const std::shared_ptr<Mapping>& self, std::size_t nbytes) {
            const std::scoped_lock lock(busy);
            std::uint8_t* part = memory.as<std::uint8_t>() + used;
            used += (nbytes + 63) / 64 * 64;
            for (std::size_t i = page_of(part); i <= page_of(part + nbytes - 1); ++i) ++num_parts[i];
            return {std::shared_ptr<std::uint8_t>(
                        part, [self, nbytes](std::uint8_t* first) { self->give(first, nbytes); }),
                    nbytes};
        }
        void trim() {
            const std::scoped_lock lock(busy);
            const std::size_t page = platform::page_size(), first = (used + page - 1) / page * page;
            const std::size_t stop = std::min((first + kHugePage - 1) / kHugePage * kHugePage, memory.nbytes());
            if (first >= stop) return;
            std::uint8_t* const start = memory.as<std::uint8_t>();
            platform::advise_small_pages(start + first, stop - first);
            platform::return_pages(start + first, start + stop);
        }
        void give(std::uint8_t* part, std::size_t nbytes) {
            const std::scoped_lock lock(busy);
            platform::return_pages(part, part + nbytes);
            for (std::size_t i = page_of(part); i <= page_of(part + nbytes - 1); ++i)
                if (--num_parts[i] == 0) return_page(i);
        }
        std::size_t page_of(const std::uint8_t* at) const {
            return reinterpret_cast<std::uintptr_t>(at) / kHugePage - first_page();
        }
        std::uintptr_t first_page() const {
            return reinterpret_cast<std::uintptr_t>(memory.as<std::uint8_t>()) / kHugePage;
        }
        void return_page(std::size_t index) {
            std::uint8_t* const start = memory.as<std::uint8_t>();
            std::uint8_t* const stop = start + memory.nbytes();
            auto* const page = reinterpret_cast<std::uint8_t*>((first_page() + index) * kHugePage);
            platform::return_pages(std::max(page, start), std::min(page + kHugePage, stop));
        }
    };

    std::mutex busy_;
    std::shared_ptr<Mapping> mapping_;
};

}  // namespace forerun
