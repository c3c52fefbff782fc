#define FORERUN_ISA avx2
#include "isa/avx2.h"
#include "kernels/table.h"
