// Tokens of the largest scores: of the logits over the temperature with the sampler's noise. The first is a token
// drawn from softmax(logits / temperature).

#pragma once

#include "model/scored.h"
#include "model/types.h"

namespace forerun {

// The `k` largest scores and their places, into `found`: descending, of equal ones the first. Less than k: kNoScore.
void find_largest(const Kernels& kernels, const Perturbation& how, const float* logits,
                  int vocab_size, int k, Scored* found);

// -1 where a logit is NaN or infinite, or all are minus infinity.
int draw(const Kernels& kernels, const Perturbation& how, const float* logits, int vocab_size);

}  // namespace forerun
