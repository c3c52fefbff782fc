#define FORERUN_ISA neon_i8mm
#include "isa/neon.h"
#include "kernels/table.h"
