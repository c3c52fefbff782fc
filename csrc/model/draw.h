// A token drawn from softmax(logits / temperature): the largest of the logits with the sampler's noise.

#pragma once

#include "model/types.h"

namespace forerun {

// The lowest token of equal ones; -1 where a logit is NaN or infinite, or all are minus infinity.
int draw(const Kernels& kernels, const Perturbation& how, const float* logits, int vocab_size);

}  // namespace forerun
