// Threads that work through the phases of a job together.
//
// A job is a sequence of phases, a phase a number of pieces, cut into shares of which each thread owns at most one; a
// phase begins when all pieces of the one before are done. A thread claims the pieces of its share one by one, so that
// it reads one long stream of weights, then those that are left of other shares, its neighbours' first. So a thread
// that is not running holds nothing up, and joins in when it runs again.
//
// What a thread writes while it has work lies on cache lines of its own: the counter of its share's claims, and of its
// pieces that are done. Finished shares are counted by a tree, eight to a node; whoever finishes the root does what
// comes between two phases and lets the threads go, by a line for each eight of them. Counters carry the number of
// their phase, so that nothing is reset between phases or jobs.
//
// Between jobs threads spin for a moment, then sleep; each eight are woken by the eight before them. The calling thread
// takes part as thread 0. docs/installing.md counts what a barrier costs.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace forerun {

class Pool;

inline constexpr int kFan = 8;  // of the tree, and threads that watch one line

// Part `index` of `count` equal parts of 0..total.
struct Part {
    int first, stop;
    Part(int first, int stop) : first(first), stop(stop) {}
    Part(int total, int index, int count)
        : first(static_cast<int>(static_cast<std::int64_t>(total) * index / count)),
          stop(static_cast<int>(static_cast<std::int64_t>(total) * (index + 1) / count)) {}
};

// Adds to a counter. Whether that makes it `all`; then it begins anew at 0.
inline bool completes(std::atomic<int>& counter, int added, int all) {
    if (counter.fetch_add(added, std::memory_order_acq_rel) + added < all) return false;
    counter.store(0, std::memory_order_relaxed);  // the next phase comes after the end of this one
    return true;
}

// Rows so few that the thread that ends a phase does what they need before the next one.
inline constexpr int kFewRows = 8;
// Pieces of the phase of other rows.
inline int row_pieces(int num_rows) { return num_rows > kFewRows ? num_rows : 0; }

// How many threads get a share of so many pieces: as few as are done no later than all of them would be.
inline int num_shares(int num_pieces, int num_threads) {
    const int most = (num_pieces + num_threads - 1) / num_threads;
    return most > 0 ? (num_pieces + most - 1) / most : 0;
}

// One thread's way through one job. It may be late, even past the job's end: what a job reads outside of pieces must
// live as long as the pool.
class Worker {
  public:
    const int thread;

    // The next phase: calls piece(index) for the pieces this thread gets, then, on one thread, when all are done,
    // `finish`; returns after that. A phase without pieces is passed over.
    template <class Piece, class Finish>
    void each(Piece piece, Finish finish) {
        begin();
        for (int index; claim(index);) guard([&] { piece(index); });
        if (is_last_) {
            guard(finish);
            release();
        }
        ++phase_;
    }
    template <class Piece>
    void each(Piece piece) {
        each(piece, [] {});
    }
    // The next two phases: piece(index), then row(index) of `num_rows` rows, in `row_pieces` pieces; `finish` after both.
    template <class Piece, class Row, class Finish>
    void each_and_rows(Piece piece, const int& num_rows, Row row, Finish finish) {
        each(piece, [&] {
            if (num_rows > kFewRows) return;
            for (int i = 0; i < num_rows; ++i) row(i);
            finish();
        });
        each(row, finish);
    }
    template <class Piece, class Row>
    void each_and_rows(Piece piece, const int& num_rows, Row row) {
        each_and_rows(piece, num_rows, row, [] {});
    }
    // Whether no phases are left. A job whose phases are not fixed asks before each.
    bool is_over() const;
    // Leaves out the phases behind this one. Only by `finish`.
    void stop();

  private:
    friend class Pool;
    Worker(Pool& pool, int index, std::uint64_t job, int num_active)
        : thread(index), pool_(pool), job_(job), num_active_(num_active) {}
    void begin();
    bool claim(int& index);
    bool claim_of(int share, int& index);
    bool is_done() const;
    void release();
    void fail() noexcept;  // called where a piece has thrown: the job's first exception is kept
    template <class Work>
    void guard(const Work& work) {
        try {
            work();
        } catch (...) {
            fail();
        }
    }

    Pool& pool_;
    const std::uint64_t job_;
    const int num_active_;
    std::uint32_t phase_ = 0;
    std::uint64_t tag_ = 0;  // the phase's number among all phases of all jobs
    int num_pieces_ = 0;     // of the phase
    int num_shares_ = 0;     // into which its pieces are divided
    int num_seen_ = 0;       // shares in which this thread has claimed all it can, from its own on
    int num_done_ = 0;       // pieces that this thread has done of its present share
    bool is_last_ = false;   // whether this thread did the last piece of the phase
};

class Pool {
  public:
    using Job = void (*)(void* self, Worker& worker);

    explicit Pool(int num_threads);  // 1 to 1024, else throws std::invalid_argument
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return num_threads_; }
    // Of the last job: those with pieces, each a barrier.
    int num_phases() const;

    // Runs job(self, worker) on every thread that comes, of the first `num_active`; `pieces` are the phases' sizes, each
    // less than 2^20. `self` must live until `settle`, or as long as the pool. Rethrows what a piece threw, once all
    // pieces are done. Not reentrant.
    void run(Job job, void* self, std::span<const int> pieces, int num_active);
    void run(Job job, void* self, std::span<const int> pieces) { run(job, self, pieces, num_threads_); }
    // Returns when no thread is in a job any more: then `self` may go. Not while a job is run.
    void settle();

  private:
    friend class Worker;
    static constexpr int kPieceBits = 20;  // of a claim; above them the phase

    // On lines of its own, and of the pair that some processors fetch together.
    struct alignas(128) Share {
        std::atomic<std::uint64_t> claimed{0};  // phase and pieces
        std::atomic<int> num_done{0};
    };
    struct alignas(128) Node {
        std::atomic<int> num_done{0};  // shares, or nodes below
    };
    struct alignas(128) Group {
        std::atomic<std::uint64_t> released{0};  // the phase that is done, and all before it
        std::atomic<std::uint32_t> bell{0};      // the job that its threads are woken for
    };
    // What exists once for each process: a fork leaves it behind, threads and what they had begun.
    struct Threads;

    void prepare();
    void start();
    void work(int thread);
    void ring(int group, std::uint32_t job);
    bool arrive(int share, int num_done, int num_pieces, int num_shares);

    const int num_threads_, num_groups_;
    std::unique_ptr<Share[]> shares_;
    std::unique_ptr<Group[]> groups_;
    std::vector<std::unique_ptr<Node[]>> levels_;  // of nodes: above the shares, above those, ..., the root
    std::unique_ptr<Threads> threads_;
    std::uint64_t next_job_ = 2;

    std::unique_ptr<std::atomic<std::uint32_t>[]> pieces_;
    std::size_t most_phases_ = 0;
    std::vector<std::unique_ptr<std::atomic<std::uint32_t>[]>> outgrown_;  // a late thread may still look at them
    std::atomic<std::atomic<std::uint32_t>*> current_{nullptr};
    std::atomic<std::uint32_t> num_phases_{0};
    std::atomic<int> num_active_{1};
    std::atomic<Job> run_{nullptr};
    std::atomic<void*> self_{nullptr};
    std::atomic<bool> stop_{false};
    std::atomic<bool> has_failed_{false};
    std::exception_ptr failure_;
    std::atomic<int> num_inside_{0};  // threads in a job, or about to see whether there is one
    // Twice the number of the job's first phase; odd while a job is being set up.
    alignas(128) std::atomic<std::uint64_t> job_{0};
};

}  // namespace forerun
