#!/bin/sh
# Drafters of SmolLM2 trained on a card of its committed replies, from the root of a checkout; half an hour in all.
#
#   dev/gpu_train.sh pack     at home: the model, and $TEXT if it is set, in pieces of 32 MB under build/card
#   dev/gpu_train.sh keep     there, for each piece that is copied: puts it aside, in $KEPT (~/card)
#   dev/gpu_train.sh RUN      there, once all pieces are: eagle3, lstm, or IBM's recipe as zero, one, two
#
# A run ends after nine minutes; the same command goes on with it while the machine is the same. What it said, its
# record and its weights in pieces of 15 MB are left in $OUT (build/card/out): cat NAME.weights.* > model.safetensors.
# Weights of more than 60 MB (IBM's, with embeddings and heads of its own) stay there, their figures come.
# `two` needs the text, which comes with the pieces. PYTHON needs a torch that sees the card, and forerun or a compiler.
set -eu
python=${PYTHON:-python3} kept=${KEPT:-$HOME/card} out=${OUT:-build/card/out} pieces=build/card
replies=benchmarks/replies/smollm2-135m-instruct

case ${1:?pack, keep or a run} in
  pack)
    mkdir -p "$pieces"
    model=$("$python" -c 'from forerun.hub.names import resolve; print(resolve("smollm2-135m-instruct"))')
    split -b 32000000 "$model" "$pieces/model."
    if [ -n "${TEXT:-}" ]; then cp "$TEXT" "$pieces/text.txt"; fi
    ls -l "$pieces"
    exit ;;
  keep)
    mkdir -p "$kept"
    for piece in "$pieces"/model.* "$pieces/text.txt"; do [ ! -e "$piece" ] || mv "$piece" "$kept/"; done
    ls -l "$kept"
    exit ;;
esac

mkdir -p "$out"
"$python" -c 'import sys, torch; torch.cuda.is_available() or sys.exit("this torch sees no CUDA device")'
"$python" -c 'import forerun' 2> /dev/null || "$python" -m pip install -q --no-build-isolation --no-deps -e .
[ -e "$kept/smollm2-135m-instruct.gguf" ] || cat "$kept"/model.* > "$kept/smollm2-135m-instruct.gguf"
[ -e "$kept/replies.jsonl" ] || gunzip -c "$replies.jsonl.gz" > "$kept/replies.jsonl"
cp "$replies.sources.json" "$kept/replies.sources.json"

ibm="--cell mlp --untied --own-embedding --own-head --loss token --step-weight 1 --tokens 300k --eval-every 50k"
case $1 in
  eagle3) options="--kind eagle3 --depth 5 --tokens 6M --batch 2048 --eval-every 1M --draft-vocab 8192" ;;
  lstm) options="--tokens 6M --batch 512 --eval-every 1M" ;;
  zero) options="$ibm --zero-tokens" ;;
  one) options=$ibm ;;
  two) options="$ibm --text $kept/text.txt --stage2-rate 0.1 --stage2-length 256" ;;
  *) echo "no run is called $1" >&2; exit 2 ;;
esac
# shellcheck disable=SC2086  # words
timeout -s INT 540 "$python" -m forerun train drafter -m "$kept/smollm2-135m-instruct.gguf" --device cuda -c 1024 \
  --answers "$kept/replies.jsonl" --states-gb 20 --patience 0 -o "$kept/$1" $options > "$out/$1.txt" 2>&1 \
  || echo "ended with $?" >> "$out/$1.txt"
tail -n 25 "$out/$1.txt"
for file in train.json metrics.csv config.json; do [ ! -e "$kept/$1/$file" ] || cp "$kept/$1/$file" "$out/$1.$file"; done
weights=$kept/$1/model.safetensors
if [ -e "$weights" ] && [ "$(stat -c %s "$weights")" -le 60000000 ]; then split -b 15000000 "$weights" "$out/$1.weights."; fi
