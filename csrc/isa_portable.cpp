// The kernels for any processor.

#define FORERUN_ISA portable
#include "isa/portable.h"
#include "kernels/table.h"

namespace forerun {

const Kernels& portable_kernels() {
    static const Kernels kernels = FORERUN_ISA::table("portable");
    return kernels;
}

}  // namespace forerun
