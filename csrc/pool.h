// A few threads that run the same job together and meet at barriers. Between jobs they watch for the next one a moment, then
// sleep: an idle program burns nothing. The calling thread takes part as thread 0.

#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace forerun {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

class Pool {
  public:
    explicit Pool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {}
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return num_threads_; }

    // Runs job(thread) on every thread and returns when all are done. Not reentrant.
    template <class Job>
    void run(Job& job) {
        run([](void* j, int thread) { (*static_cast<Job*>(j))(thread); }, &job);
    }

    // All threads of the running job meet here.
    void barrier();

  private:
    using Call = void (*)(void*, int);
    struct Workers {
        std::vector<std::thread> threads;
        pid_t owner = 0;
    };

    void run(Call call, void* job);
    void start();
    void work(int thread, std::uint32_t seen);

    const int num_threads_;
    std::unique_ptr<Workers> workers_;
    Call call_ = nullptr;
    void* job_ = nullptr;
    bool stop_ = false;
    alignas(64) std::atomic<std::uint32_t> round_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<std::uint32_t> phase_{0};
};

// Part `index` of `count` equal parts of 0..total.
struct Part {
    int first, stop;
    Part(int total, int index, int count)
        : first(static_cast<int>(static_cast<std::int64_t>(total) * index / count)),
          stop(static_cast<int>(static_cast<std::int64_t>(total) * (index + 1) / count)) {}
};

}  // namespace forerun
