#define FORERUN_ISA avx512
#include "isa/avx512.h"
#include "kernels/table.h"
