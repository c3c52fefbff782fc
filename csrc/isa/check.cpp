// Does an instruction set compute what the portable kernels compute, on this very processor?

#include <iterator>
#include <stdexcept>
#include <type_traits>

#include "model/recurrence.h"
#include "isa/check.h"
#include "isa/isa.h"

namespace forerun {
namespace {

// --- kernels that are wrong on purpose, for the tests ---

// Changes the first byte of what a kernel wrote.
template <class T>
void spoil(T& argument) {
    if constexpr (std::is_same_v<T, Attended>) spoil(argument.out);
    if constexpr (std::is_same_v<T, const Rows>) spoil(argument.q);
    if constexpr (std::is_same_v<T, const Output>) spoil(argument.out);
    if constexpr (std::is_same_v<T, const KvHead>) spoil(argument.first_page);
    if constexpr (std::is_same_v<T, const Recurrence>) spoil(argument.changes);
    if constexpr (std::is_same_v<T, const StateChange>) spoil(argument.to);
    if constexpr (std::is_convertible_v<T, void*>)  // not const
        ++*static_cast<std::uint8_t*>(static_cast<void*>(argument));
}

template <auto Member, class Result, class... Args>
void break_kernel(Kernels& kernels, Result (*)(Args...)) {
    kernels.*Member = [](Args... args) -> Result {
        if constexpr (std::is_void_v<Result>) {
            (portable::kernels.*Member)(args...);
            (spoil(args), ...);
        } else {
            return (portable::kernels.*Member)(args...) + 1;
        }
    };
}

struct Check {
    const char* kernel;
    void (*run)(const Kernels&, Results&);
    void (*breaks)(Kernels&);
};

#define CHECK(kernel) \
    {#kernel, check_##kernel, \
     [](Kernels& kernels) { break_kernel<&Kernels::kernel>(kernels, kernels.kernel); }}
constexpr Check kChecks[] = {CHECK(pack_rows),
                             CHECK(linear),
                             CHECK(quantize),
                             CHECK(flatten),
                             CHECK(flatten_by_row),
                             CHECK(norm),
                             CHECK(activate),
                             CHECK(gate),
                             CHECK(rotate),
                             CHECK(scale),
                             CHECK(cap),
                             CHECK(exp_sum),
                             CHECK(find),
                             CHECK(noise),
                             CHECK(find_score),
                             CHECK(quantize_query),
                             CHECK(write_key),
                             CHECK(write_value),
                             CHECK(attend),
                             CHECK(merge),
                             CHECK(finish),
                             CHECK(convolve),
                             CHECK(dot_keys),
                             CHECK(recur),
                             CHECK(change_state),
                             CHECK(peak),
                             CHECK(float_peak)};
#undef CHECK
static_assert(sizeof(Kernels) == (1 + std::size(kChecks)) * sizeof(void*),
              "every kernel of the table has its check");

}  // namespace

std::vector<std::string> checked_kernels() {
    std::vector<std::string> names;
    for (const Check& check : kChecks) names.emplace_back(check.kernel);
    return names;
}

std::vector<std::string> wrong_kernels(Kernels kernels, const std::string& broken) {
    bool is_known = broken.empty();
    for (const Check& check : kChecks) {
        if (broken != check.kernel) continue;
        check.breaks(kernels);
        is_known = true;
    }
    if (!is_known) throw std::invalid_argument("no kernel is called " + broken);
    std::vector<std::string> names;
    for (const Check& check : kChecks) {
        Results here, expected;
        check.run(kernels, here);
        check.run(portable::kernels, expected);
        if (here.bytes != expected.bytes) names.emplace_back(check.kernel);
    }
    return names;
}

}  // namespace forerun
