#include "model/pool.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "platform.h"
#include "threads.h"

namespace forerun {
namespace {

// Long enough for the work of a step that is not ours (sampling, drafting), short enough to be
// nothing.
constexpr auto kWatch = std::chrono::microseconds(300);
// Looks at the end of a phase, a few tens of nanoseconds each, before a thread looks for work far from its own, and
// before it lets others have the core: a piece's thread may have lost its own.
constexpr int kPatience = 64, kManyLooks = 2048;

}  // namespace

struct Pool::Threads {
    std::vector<std::thread> threads;
    std::int64_t owner = 0;
};

// A late thread may read the pieces of a later job here: the number of jobs, which changes before pieces do, tells. It
// must claim none of them: it may be at a phase without pieces, which is never released.
void Worker::begin() {
    tag_ = job_ / 2 + phase_;
    num_seen_ = num_done_ = 0;
    is_last_ = false;
    const std::atomic<std::uint32_t>* pieces = pool_.current_.load(std::memory_order_acquire);
    const bool exists = phase_ < pool_.num_phases_.load(std::memory_order_acquire);
    num_pieces_ = exists ? static_cast<int>(pieces[phase_].load(std::memory_order_acquire)) : 0;
    if (pool_.job_.load(std::memory_order_acquire) != job_) num_pieces_ = 0;
    num_shares_ = num_shares(num_pieces_, num_active_);
}

bool Worker::is_over() const {
    return phase_ >= pool_.num_phases_.load(std::memory_order_acquire);
}

void Worker::stop() { pool_.num_phases_.store(phase_ + 1, std::memory_order_release); }

// The next piece of this thread's share, then of others': those of its group first, and those of other groups only if
// the phase does not end at once. Waits for its end if there is none.
bool Worker::claim(int& index) {
    const int first = thread / kFan * kFan,
              near = std::clamp(num_shares_ - first, 0, kFan);
    for (; num_seen_ < num_shares_; ++num_seen_) {
        for (int looks = 0; num_seen_ == near && !is_done() && looks < kPatience; ++looks)
            platform::relax();
        if (is_done()) return false;
        const int share = num_seen_ < near ? first + (thread - first + num_seen_) % near
                                           : (first + num_seen_) % num_shares_;
        if (claim_of(share, index)) {
            ++num_done_;
            return true;
        }
        if (num_done_ == 0) continue;
        is_last_ = pool_.arrive(share, std::exchange(num_done_, 0), num_pieces_, num_shares_);
        if (is_last_) return false;
    }
    for (int looks = 0; num_shares_ > 0 && !is_done(); ++looks) {
        platform::relax();
        if (looks > kManyLooks) std::this_thread::yield();
    }
    return false;
}

// Succeeds only while the phase is on: once it is over, the share has no piece left, or belongs to a later phase.
bool Worker::claim_of(int share, int& index) {
    constexpr std::uint64_t mask = (std::uint64_t{1} << Pool::kPieceBits) - 1;
    std::atomic<std::uint64_t>& claimed = pool_.shares_[share].claimed;
    const Part part(num_pieces_, share, num_shares_);
    std::uint64_t seen = claimed.load(std::memory_order_acquire);
    for (;;) {
        const std::uint64_t tag = seen >> Pool::kPieceBits, taken = tag == tag_ ? seen & mask : 0;
        index = part.first + static_cast<int>(taken);
        if (tag > tag_ || index >= part.stop) return false;
        if (claimed.compare_exchange_weak(seen, (tag_ << Pool::kPieceBits) + taken + 1,
                                          std::memory_order_acq_rel))
            return true;
    }
}

bool Worker::is_done() const {
    return pool_.groups_[thread / kFan].released.load(std::memory_order_acquire) >= tag_;
}

// Only forwards: a thread that loses its core between two groups is late for the others.
void Worker::release() {
    for (int group = 0; group * kFan < num_active_; ++group) {
        std::atomic<std::uint64_t>& released = pool_.groups_[group].released;
        std::uint64_t seen = released.load(std::memory_order_relaxed);
        while (seen < tag_ &&
               !released.compare_exchange_weak(seen, tag_, std::memory_order_acq_rel)) {
        }
    }
}

void Worker::fail() noexcept {
    if (!pool_.has_failed_.exchange(true)) pool_.failure_ = std::current_exception();
}

Pool::Pool(int num_threads)
    : num_threads_(num_threads), num_groups_((num_threads + kFan - 1) / kFan) {
    if (num_threads < 1 || num_threads > 1024)
        throw std::invalid_argument("threads must be 1 to 1024");
    prepare();
}

Pool::~Pool() {
    if (!threads_) return;
    if (threads_->owner != platform::process()) {  // a forked child: these threads exist only in the parent
        (void)threads_.release();
        return;
    }
    stop_ = true;
    for (int group = 0; group < num_groups_; ++group) ring(group, groups_[group].bell + 1);
    for (std::thread& thread : threads_->threads) thread.join();
}

void Pool::prepare() {
    shares_ = std::make_unique<Share[]>(num_threads_);
    groups_ = std::make_unique<Group[]>(num_groups_);
    levels_.clear();
    for (int count = num_threads_; count > 1;) {
        count = (count + kFan - 1) / kFan;
        levels_.push_back(std::make_unique<Node[]>(count));
    }
    next_job_ = 2;
    job_ = 0;
    num_inside_ = 0;
}

void Pool::start() {
    // A fork in the middle of a job left threads behind that are not here, and counters of phases half done.
    (void)threads_.release();
    prepare();
    threads_ = std::make_unique<Threads>();
    threads_->owner = platform::process();
    // The shares of threads that cannot be started are taken by the others.
    start_threads(threads_->threads, 1, num_threads_, [this](int thread) { work(thread); });
}

void Pool::run(Job job, void* self, std::span<const int> pieces, int num_active) {
    for (int count : pieces)
        if (count < 0 || count >= 1 << kPieceBits)
            throw std::invalid_argument("a phase of " + std::to_string(count) + " pieces");
    if (num_threads_ > 1 && (!threads_ || threads_->owner != platform::process())) start();
    job_.fetch_add(1, std::memory_order_acq_rel);
    if (pieces.size() > most_phases_) {
        outgrown_.push_back(std::move(pieces_));
        most_phases_ = 2 * pieces.size();
        pieces_ = std::make_unique<std::atomic<std::uint32_t>[]>(most_phases_);
        current_.store(pieces_.get(), std::memory_order_release);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i)
        pieces_[i].store(static_cast<std::uint32_t>(pieces[i]), std::memory_order_release);
    num_phases_.store(static_cast<std::uint32_t>(pieces.size()), std::memory_order_release);
    num_active_.store(num_active, std::memory_order_release);
    run_.store(job, std::memory_order_release);
    self_.store(self, std::memory_order_release);
    const std::uint64_t number = std::exchange(next_job_, next_job_ + 2 * (pieces.size() + 1));
    job_.store(number, std::memory_order_release);
    if (num_threads_ > 1) ring(0, static_cast<std::uint32_t>(number / 2));
    Worker worker(*this, 0, number, num_active);
    job(self, worker);
    if (!has_failed_.load(std::memory_order_acquire)) return;
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    has_failed_ = false;
    std::rethrow_exception(failure);
}

int Pool::num_phases() const {
    int count = 0;
    for (std::uint32_t i = 0; i < num_phases_; ++i) count += pieces_[i] > 0;
    return count;
}

// Some pieces of a share are done. Whether that was the last of all.
bool Pool::arrive(int share, int num_done, int num_pieces, int num_shares) {
    const Part part(num_pieces, share, num_shares);
    if (!completes(shares_[share].num_done, num_done, part.stop - part.first)) return false;
    int at = share, count = num_shares;  // of `count` that take part, at each level
    for (std::size_t level = 0; count > 1; ++level) {
        at /= kFan;
        if (!completes(levels_[level][at].num_done, 1, std::min(kFan, count - at * kFan)))
            return false;
        count = (count + kFan - 1) / kFan;
    }
    return true;
}

void Pool::settle() {
    if (!threads_ || threads_->owner != platform::process()) return;
    job_.fetch_add(1);
    while (num_inside_.load() > 0) std::this_thread::yield();
    run_.store(nullptr, std::memory_order_relaxed);
    job_.store(std::exchange(next_job_, next_job_ + 2));
}

// Only forwards: a late thread may ring for an old job.
void Pool::ring(int group, std::uint32_t job) {
    std::atomic<std::uint32_t>& bell = groups_[group].bell;
    std::uint32_t seen = bell.load(std::memory_order_relaxed);
    while (static_cast<std::int32_t>(job - seen) > 0)
        if (bell.compare_exchange_weak(seen, job, std::memory_order_acq_rel)) return bell.notify_all();
}

void Pool::work(int thread) {
    const int group = thread / kFan;
    std::atomic<std::uint32_t>& bell = groups_[group].bell;
    std::uint64_t last = 0;
    const platform::IeeeFloats floats;
    for (std::uint32_t seen = 0;;) {
        const auto deadline = std::chrono::steady_clock::now() + kWatch;
        std::uint32_t rung = bell.load(std::memory_order_acquire);
        for (int spins = 0; rung == seen; ++spins) {
            platform::relax();
            if (spins % 64 == 63 && std::chrono::steady_clock::now() > deadline)
                bell.wait(rung, std::memory_order_acquire);
            rung = bell.load(std::memory_order_acquire);
        }
        seen = rung;
        if (stop_.load(std::memory_order_acquire)) return;
        // Of this job, or the next one's: then that will ring too.
        const int most = num_active_.load(std::memory_order_acquire);
        for (int child = 2 * group + 1; child <= 2 * group + 2 && child * kFan < most; ++child)
            ring(child, seen);
        // In one order with `settle`: either it waits for this thread, or the number has changed.
        num_inside_.fetch_add(1);
        const std::uint64_t job = job_.load();
        const int active = num_active_.load(std::memory_order_acquire);
        const Job run = run_.load(std::memory_order_acquire);
        void* self = self_.load(std::memory_order_acquire);
        // Else another job is being set up, or this thread was in this one already.
        if (job % 2 == 0 && job != last && thread < active && job_.load() == job && run) {
            last = job;
            Worker worker(*this, thread, job, active);
            run(self, worker);
        }
        num_inside_.fetch_sub(1);
    }
}

}  // namespace forerun
