#!/bin/sh
# The GPU kernels on a card, bits first, then times: dev/gpu.sh [MODEL], from the root of a checkout. Half an hour.
# Training there is dev/gpu_train.sh, or dev/gpu.sh train RUN.
#
# Each step is bounded and the next one runs whatever it says; what they print is kept in $OUT (build/card).
# Nothing is fetched but the default model, if MODEL is not given and it is not there yet. PYTHON (python3) needs a torch
# that sees the card, triton, pytest and hypothesis; forerun is built for it if it is missing (C++ compiler, nanobind).
set -u
[ "${1:-}" = train ] && shift && exec sh dev/gpu_train.sh "$@"
model=${1:-smollm2-135m-instruct}
python=${PYTHON:-python3}
out=${OUT:-build/card}
mkdir -p "$out"
"$python" -c 'import sys, torch; torch.cuda.is_available() or sys.exit("this torch sees no CUDA device")' || exit 1
"$python" -c 'import torch, triton; print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)' \
  | tee "$out/card.txt" || exit 1
"$python" -c 'import forerun' 2> /dev/null || "$python" -m pip install -q --no-build-isolation --no-deps -e . || exit 1

# step SECONDS NAME COMMAND...
step() {
  seconds=$1 name=$2
  shift 2
  printf '\n== %s\n' "$name"
  timeout "$seconds" "$@" > "$out/$name.txt" 2>&1
  printf 'ended with %s\n' "$?" >> "$out/$name.txt"
  tail -n 25 "$out/$name.txt"
}
tested() { step "$1" "$2" env FORERUN_TEST_DEVICE=cuda "$python" -m pytest -q -p no:cacheprovider "$3" -m "$4"; }

# Bits: each format, each kind of layer, a served model; then all layers of SmolLM2. If one fails, its name says which
# kernel; times are measured all the same.
tested 240 bits-linear tests/gpu/test_linear.py triton
tested 240 bits-layers tests/gpu/test_decoder.py triton
tested 120 bits-experts tests/gpu/test_experts.py triton
tested 120 bits-graphs tests/gpu/test_graphs.py triton
tested 120 bits-networks tests/gpu/test_networks.py triton
tested 120 bits-drafters tests/gpu/test_layered.py triton
tested 120 bits-engine tests/gpu/test_engine.py triton
tested 120 bits-broken tests/gpu/test_mutants.py triton

# Answers: the CPU's receipts, drafted against plain, and the card's against them, greedy and sampled.
for temperature in 0 1; do
  asked="verify $model --limit 20 -n 48 --temperature $temperature --seed 1 -d recycling"
  # shellcheck disable=SC2086  # words
  step 300 "answers-cpu-$temperature" "$python" -m forerun $asked --receipt "$out/receipt-$temperature.json"
  # shellcheck disable=SC2086
  step 240 "answers-card-$temperature" "$python" -m forerun $asked --device cuda --against "$out/receipt-$temperature.json"
done

# Times: passes by rows and context, the matrix kernel by shape of tile, then answers.
step 240 times-passes "$python" -m forerun bench kernels "$model" --device cuda --cases 1,2,4,8,16,32 --repeats 10
step 300 times-linear "$python" -m dev.gpu_times
step 300 times-answers "$python" -m forerun bench "$model" --device cuda --limit 3 -n 48 -d none,recycling,lookahead
