// Threads that help, where the system allows them.

#pragma once

#include <system_error>
#include <vector>

namespace forerun {

// Adds threads of work(first), work(first + 1), ... up to work(stop - 1); fewer where the system allows no more
// (pids.max, ulimit -u): all work must be done by those that come, and by the caller.
template <class Thread, class Work>
void start_threads(std::vector<Thread>& threads, int first, int stop, const Work& work) {
    try {
        for (int i = first; i < stop; ++i) threads.emplace_back([work, i] { work(i); });
    } catch (const std::system_error&) {
    }
}

}  // namespace forerun
