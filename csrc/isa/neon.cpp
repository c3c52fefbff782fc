#define FORERUN_ISA neon
#include "isa/neon.h"
#include "kernels/table.h"
