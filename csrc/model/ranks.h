// One model cut over several processes. Each holds a part of every layer's heads and MLP, and computes a
// partial sum of what a sublayer adds to the rows; each gets the partial sums of all and adds them in the
// order of ranks. So all have the same rows, bit for bit, and no row depends on another.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace forerun {

// Where partial sums lie: a line of 64 bytes a rank, in which it counts its turns, then for even and odd
// turns the numbers of rank 0, 1, ... Two are enough: who writes turn t + 2 has met all others in t + 1,
// who have read turn t then. The memory is shared by processes of one machine; or it is a process's own,
// and `gather` brings what the others wrote.
class Ranks {
  public:
    // gather(first number of the turn's part 0, count): returns once the first `count` numbers of every
    // part are there. Must not throw.
    using Gather = std::function<void(float* parts, std::size_t count)>;

    // Throws std::invalid_argument for memory that is too small.
    Ranks(int rank, int size, std::size_t num_floats, std::uint8_t* memory, std::size_t nbytes,
          Gather gather);

    static std::size_t nbytes(int size, std::size_t num_floats) {
        return size * (kLine + 2 * num_floats * sizeof(float));
    }

    int rank() const { return rank_; }
    int size() const { return size_; }
    std::size_t num_floats() const { return num_floats_; }  // of a part, at most

    // Where this rank writes until `all_reduce`, and what the rank wrote before the last one.
    float* own() const { return parts(turn_) + rank_ * num_floats_; }
    const float* part(int rank) const { return parts(turn_ - 1) + rank * num_floats_; }
    // Returns when the first `count` numbers of every rank are there. One thread calls it.
    void all_reduce(std::size_t count);

  private:
    static constexpr std::size_t kLine = 64;

    float* parts(std::uint32_t turn) const {
        return reinterpret_cast<float*>(memory_ + size_ * kLine) + turn % 2 * size_ * num_floats_;
    }
    std::atomic<std::uint32_t>& turns_of(int rank) const {
        return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_ + rank * kLine);
    }

    const int rank_, size_;
    const std::size_t num_floats_;
    std::uint8_t* const memory_;
    const Gather gather_;
    std::uint32_t turn_ = 0;
};

}  // namespace forerun
