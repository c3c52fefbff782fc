// The kernels for AVX2 with AVX-VNNI.

#define FORERUN_ISA avxvnni
#include "isa/avx2.h"
#include "kernels/table.h"
