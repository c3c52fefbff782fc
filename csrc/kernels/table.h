// The kernel table of the instruction set this is compiled for.

#pragma once

#include "attention.h"
#include "linear.h"
#include "rows.h"

namespace forerun::FORERUN_ISA {

inline Kernels table(const char* name) {
    Kernels k;
    k.name = name;
    k.linear = linear;
    k.quantize = quantize;
    k.norm = norm;
    k.activate = activate;
    k.rotate = rotate;
    k.scale = scale;
    k.write_key = write_key;
    k.write_value = write_value;
    k.attend = attend;
    k.merge = merge;
    k.finish = finish;
    k.peak = peak;
    return k;
}

}  // namespace forerun::FORERUN_ISA
