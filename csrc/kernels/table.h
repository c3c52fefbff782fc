// The kernel table of the instruction set this is compiled for.

#pragma once

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/noise.h"
#include "kernels/pack_rows.h"
#include "kernels/recurrent.h"
#include "kernels/rows.h"

#define FORERUN_NAME(isa) FORERUN_STRING(isa)
#define FORERUN_STRING(isa) #isa

namespace forerun::FORERUN_ISA {

constinit const Kernels kernels = {
    .name = FORERUN_NAME(FORERUN_ISA),
    .pack_rows = pack_rows,
    .linear = linear,
    .quantize = quantize,
    .flatten = flatten,
    .flatten_by_row = flatten_by_row,
    .norm = norm,
    .activate = activate,
    .gate = gate,
    .rotate = rotate,
    .scale = scale,
    .cap = cap,
    .exp_sum = exp_sum,
    .find = find,
    .noise = noise,
    .find_score = find_score,
    .quantize_query = quantize_query,
    .write_key = write_key,
    .write_value = write_value,
    .attend = attend,
    .merge = merge,
    .finish = finish,
    .convolve = convolve,
    .dot_keys = dot_keys,
    .recur = recur,
    .change_state = change_state,
    .peak = peak,
    .float_peak = float_peak,
};

}  // namespace forerun::FORERUN_ISA
