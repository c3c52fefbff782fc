// The kernels for AVX2, FMA and F16C.

#define FORERUN_ISA avx2
#include "isa/avx2.h"
#include "kernels/table.h"

namespace forerun {

const Kernels& avx2_kernels() {
    static const Kernels kernels = FORERUN_ISA::table("avx2");
    return kernels;
}

}  // namespace forerun
