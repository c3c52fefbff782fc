// Tries the schedules of a pool of `argv[2]` threads that does the jobs named `argv[3]`, one after the other: between any
// two operations on what threads share another thread may go on, `argv[1]` times in a run at most where nothing makes it
// wait (bounded search after Musuvathi and Qadeer, PLDI 2007). Prints how many there were; exits with 1 at the first that
// leaves a piece out, does it twice or too early, or in which all wait for ever. Operations take effect in one order: what a processor may reorder, and
// what is not atomic, is the thread sanitizer's.

#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform.h"

namespace schedule {

constexpr std::size_t kStack = 64 << 10;
constexpr int kMostThreads = 4, kIdleRounds = 8;

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStack]};
    std::function<void()> body;
    bool is_alive = false, waits = false;  // waits: until someone writes
};

Fiber fibers[kMostThreads];
int current = 0, num_preemptions = 0, most_preemptions = 0, idle_rounds = 0;
// What was chosen at each point of this run, of how many; the next run goes another way at the last that can.
std::vector<std::pair<int, int>> choices;
std::size_t depth = 0;

int choose(int count) {
    if (count == 1) return 0;
    if (depth == choices.size()) choices.push_back({0, count});
    return choices[depth++].first;
}

bool next_run() {
    while (!choices.empty() && choices.back().first + 1 == choices.back().second) choices.pop_back();
    depth = 0;
    if (choices.empty()) return false;
    ++choices.back().first;
    return true;
}

void switch_to(int fiber) {
    if (fiber == current) return;
    ucontext_t* from = &fibers[current].context;
    current = fiber;
    swapcontext(from, &fibers[fiber].context);
}

// Lets another thread go on; this one does too, if it may.
void pause(bool may_go_on) {
    int able[kMostThreads], count = 0;
    if (may_go_on) able[count++] = current;
    for (int i = 0; i < kMostThreads; ++i)
        if (i != current && fibers[i].is_alive && !fibers[i].waits) able[count++] = i;
    if (count == 0) {  // a wait that gives up after a while does so now
        if (++idle_rounds > kIdleRounds) {
            std::puts("all threads wait");
            std::exit(1);
        }
        for (Fiber& fiber : fibers) fiber.waits = false;
        return pause(fibers[current].is_alive);
    }
    const bool is_free = may_go_on && num_preemptions == most_preemptions;
    const int next = able[is_free ? 0 : choose(count)];
    num_preemptions += may_go_on && next != current;
    switch_to(next);
}

void read() { pause(true); }
void wrote() {
    idle_rounds = 0;
    for (Fiber& fiber : fibers) fiber.waits = false;
}
void wait() {
    fibers[current].waits = true;
    pause(false);
}

void enter() {
    fibers[current].body();
    fibers[current].is_alive = false;
    wrote();
    pause(false);
}

template <class T>
class Atomic {
  public:
    Atomic() = default;
    Atomic(T value) : value_(value) {}
    T load(std::memory_order = {}) const {
        read();
        return value_;
    }
    void store(T value, std::memory_order = {}) { exchange(value); }
    T exchange(T value, std::memory_order = {}) {
        read();
        wrote();
        return std::exchange(value_, value);
    }
    template <class N>
    T fetch_add(N count, std::memory_order = {}) {
        const T before = (read(), value_);
        value_ = static_cast<T>(before + count);
        wrote();
        return before;
    }
    template <class N>
    T fetch_sub(N count, std::memory_order = {}) {
        return fetch_add(-count);
    }
    bool compare_exchange_weak(T& expected, T value, std::memory_order = {}) {
        read();
        if (value_ != expected) return expected = value_, false;
        value_ = value;
        wrote();
        return true;
    }
    void operator=(T value) { store(value); }
    operator T() const { return load(); }
    void wait(T value, std::memory_order = {}) const {
        while (load() == value) schedule::wait();
    }
    void notify_all() {}

  private:
    T value_{};
};

class Thread {
  public:
    explicit Thread(std::function<void()> body) {
        for (id_ = 1; fibers[id_].is_alive;) ++id_;
        Fiber& fiber = fibers[id_];
        fiber.body = std::move(body);
        fiber.is_alive = true;
        fiber.waits = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStack;
        makecontext(&fiber.context, enter, 0);
    }
    void join() {
        while (fibers[id_].is_alive) wait();
    }

  private:
    int id_;
};

namespace this_thread {
inline void yield() { wait(); }
}  // namespace this_thread

}  // namespace schedule

// The pool itself, with these in the place of the library's.
namespace std {
template <class T>
using scheduled_atomic = schedule::Atomic<T>;
using scheduled_thread = schedule::Thread;
namespace scheduled_this_thread = schedule::this_thread;
}  // namespace std
namespace forerun::platform {
inline void scheduled_relax() { schedule::wait(); }
}  // namespace forerun::platform

#define atomic scheduled_atomic
#define thread scheduled_thread
#define this_thread scheduled_this_thread
#define relax scheduled_relax
#include "model/pool.cpp"
#undef atomic
#undef thread

namespace {

using forerun::Pool;
using forerun::Worker;

struct Work {
    std::vector<int> pieces;
    int looks_every = 0;     // phases between two looks whether the job is over; 0: it never looks
    int stopping = -1;       // the phase whose finish stops the job
    int done[4][4] = {};
    int num_finished = 0;
    bool is_right = true, is_gone = false;

    bool is_done(int phase) const {
        return pieces[phase] > 0 && (stopping < 0 || phase <= stopping);
    }
    int num_done_before(int phase) const {
        int count = 0;
        for (int i = 0; i < phase; ++i) count += is_done(i);
        return count;
    }
};

Work* works;

// N: which of the jobs it is.
template <int N>
void run(void* self, Worker& worker) {
    Work& work = *static_cast<Work*>(self);
    schedule::read();
    work.is_right &= &work == works + N && !work.is_gone;
    const int num_phases = static_cast<int>(work.pieces.size());
    for (int phase = 0; phase < num_phases; ++phase) {
        if (work.looks_every > 0 && phase % work.looks_every == 0 && worker.is_over()) return;
        worker.each(
            [&work, phase](int index) {
                schedule::read();
                work.is_right &= work.num_finished == work.num_done_before(phase);
                ++work.done[phase][index];
            },
            [&work, phase, &worker] {
                schedule::read();
                ++work.num_finished;
                if (phase == work.stopping) worker.stop();
            });
    }
}

bool is_done_once(const Work& work) {
    const int num_phases = static_cast<int>(work.pieces.size());
    for (int phase = 0; phase < num_phases; ++phase)
        for (int i = 0; i < 4; ++i)
            if (work.done[phase][i] != (work.is_done(phase) && i < work.pieces[phase])) return false;
    return work.is_right && work.num_finished == work.num_done_before(num_phases);
}

// What runs back to back in the engine. Phases of few rows have no pieces: the last one of every pass and of every step
// of a draft network, among others.
std::vector<Work> jobs_of(const std::string& name) {
    if (name == "looking") return {{{2, 1, 1}, 1, 1}, {{4, 1, 3}, 1}};
    if (name == "passes") return {{{2, 0}}, {{4, 3, 1}}};
    if (name == "drafts") return {{{1, 0, 2, 0}, 2, 0}, {{3, 2, 0}}, {{2, 0}, 2, 0}};
    throw std::invalid_argument(name);
}

// A late thread may still look at a job while the next ones are done.
bool holds(int num_threads, std::vector<Work> jobs) {
    constexpr Pool::Job runs[] = {run<0>, run<1>, run<2>};
    works = jobs.data();
    {
        Pool pool(num_threads);
        for (std::size_t i = 0; i < jobs.size(); ++i) pool.run(runs[i], &jobs[i], jobs[i].pieces);
        pool.settle();
        for (Work& work : jobs) work.is_gone = true;
    }
    return std::all_of(jobs.begin(), jobs.end(), is_done_once);
}

}  // namespace

int main(int, char** argv) {
    schedule::most_preemptions = std::atoi(argv[1]);
    long count = 0;
    do {
        schedule::num_preemptions = schedule::idle_rounds = schedule::current = 0;
        schedule::fibers[0].is_alive = true;
        schedule::fibers[0].waits = false;
        ++count;
        if (!holds(std::atoi(argv[2]), jobs_of(argv[3]))) {
            std::printf("wrong in schedule %ld\n", count);
            return 1;
        }
    } while (schedule::next_run());
    std::printf("%ld schedules\n", count);
}
