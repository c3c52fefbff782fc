// The kernels for AVX-512 with VNNI.

#define FORERUN_ISA avx512
#include "isa/avx512.h"
#include "kernels/table.h"

namespace forerun {

const Kernels& avx512_kernels() {
    static const Kernels kernels = FORERUN_ISA::table("avx512");
    return kernels;
}

}  // namespace forerun
