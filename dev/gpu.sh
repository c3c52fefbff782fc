#!/bin/sh
# Checks the torch decoder on a CUDA device and measures it: dev/gpu.sh [MODEL], from the root of a checkout.
#
# At most 8 minutes. Nothing is fetched but the default model, if MODEL is not given and it is not there yet.
# PYTHON (python3) needs a torch that sees the device, pytest and hypothesis; forerun is built for it if it is missing.
set -eu
model=${1:-smollm2-135m-instruct}
python=${PYTHON:-python3}
forerun="$python -m forerun"

"$python" -c 'import sys, torch; torch.cuda.is_available() or sys.exit("this torch sees no CUDA device")'
"$python" -c 'import forerun' 2> /dev/null || "$python" -m pip install -q --no-build-isolation --no-deps -e .

echo "== row law, families, passes of 1 to 16 rows, trees"
"$python" -m pytest -q -p no:cacheprovider -m gpu tests/torch

echo "== drafted tokens against plain ones, greedy and sampled"
$forerun verify "$model" --device cuda --limit 3 -n 48 -d recycling
$forerun verify "$model" --device cuda --limit 3 -n 48 --temperature 1 --seed 1 -d recycling

echo "== speed: the row for benchmarks/README.md"
"$python" -c 'import torch; print(torch.cuda.get_device_name(), "torch", torch.__version__)'
$forerun bench "$model" --device cuda --limit 3 -n 48 -d none,recycling,lookahead
$forerun bench kernels "$model" --device cuda --cases 1,2,4,8,16 --repeats 10
