#define FORERUN_ISA avxvnni
#include "isa/avx2.h"
#include "kernels/table.h"
