// Threads that work through the phases of a job together.
//
// A job is a fixed sequence of phases, a phase a number of pieces, of which every thread has an
// equal share, one after the other; a phase begins when all pieces of the one before are done. A
// thread claims the pieces of its share one by one, so that it reads one long stream of weights,
// then those that are left of other shares. So a thread that is not running holds nothing up, and
// joins in when it runs again.
// Between jobs threads spin for a moment, then sleep. The calling thread takes part as thread 0.

#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace forerun {

class Pool;

// One thread's way through one job. It may be late, even past the job's end: what a job reads
// outside of pieces must live as long as the pool.
class Worker {
  public:
    const int thread;

    // The next phase: calls piece(index) for the pieces this thread gets, returns when all are
    // done.
    template <class Piece>
    void each(Piece piece) {
        std::uint32_t num_done = 0;
        for (std::uint32_t index; claim(index); ++num_done) {
            try {
                piece(static_cast<int>(index));
            } catch (...) {
                fail();
            }
        }
        wait(num_done);
        ++phase_;
    }

  private:
    friend class Pool;
    Worker(Pool& pool, int index, std::uint32_t round)
        : thread(index), pool_(pool), round_(round) {}
    bool claim(std::uint32_t& index);
    void wait(std::uint32_t num_done);
    void fail() noexcept;  // called where a piece has thrown: the job's first exception is kept

    Pool& pool_;
    const std::uint32_t round_;
    std::size_t phase_ = 0;
    int num_empty_ = 0;     // shares without pieces, from this thread's on
    bool is_late_ = false;  // the job is over
};

class Pool {
  public:
    using Job = void (*)(void* self, Worker& worker);

    explicit Pool(int num_threads);  // 1 to 1024, else throws std::invalid_argument
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return num_threads_; }

    // Runs job(self, worker) on every thread that comes; `pieces` are the phases' sizes. `self`
    // must live until `settle`, or as long as the pool. Rethrows what a piece threw, once all pieces are done. Not
    // reentrant.
    void run(Job job, void* self, std::span<const int> pieces);
    // Returns when no thread is in a job any more: then `self` may go. Not while a job is run.
    void settle();

  private:
    friend class Worker;
    struct alignas(64) Phase {
        std::unique_ptr<std::atomic<std::uint64_t>[]> claimed;  // of each share: round, number
        std::atomic<std::uint32_t> count{0};
        alignas(64) std::atomic<std::uint32_t> done{0};
    };
    struct Threads {
        std::vector<std::thread> threads;
        std::int64_t owner = 0;
    };

    void start();
    void work(int thread);

    const int num_threads_;
    std::unique_ptr<Threads> threads_;
    std::unique_ptr<Phase[]> phases_;
    std::size_t num_phases_ = 0;
    std::vector<std::unique_ptr<Phase[]>> outgrown_;  // a late thread may still look at them
    std::atomic<Job> job_{nullptr};
    std::atomic<void*> self_{nullptr};
    std::atomic<Phase*> current_{nullptr};
    std::atomic<bool> stop_{false};
    std::atomic<bool> has_failed_{false};
    std::exception_ptr failure_;
    std::atomic<int> num_inside_{0};  // threads in a job, or about to see whether there is one
    alignas(64) std::atomic<std::uint32_t> round_{0};  // odd while a job is being set up
};

// Part `index` of `count` equal parts of 0..total.
struct Part {
    int first, stop;
    Part(int first, int stop) : first(first), stop(stop) {}
    Part(int total, int index, int count)
        : first(static_cast<int>(static_cast<std::int64_t>(total) * index / count)),
          stop(static_cast<int>(static_cast<std::int64_t>(total) * (index + 1) / count)) {}
};

}  // namespace forerun
