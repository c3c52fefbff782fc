// The kernels for AVX2 with AVX-VNNI.

#define FORERUN_ISA avxvnni
#include "isa/avx2.h"
#include "kernels/table.h"

namespace forerun {

const Kernels& avxvnni_kernels() {
    static const Kernels kernels = FORERUN_ISA::table("avxvnni");
    return kernels;
}

}  // namespace forerun
