#define FORERUN_ISA portable
#include "isa/portable.h"
#include "kernels/table.h"
