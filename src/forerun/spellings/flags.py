"""Flags of llama.cpp's commands that do nothing here, by the reason; `forerun.cli.arguments` reads them.

Other flags of theirs are options of ours by another name (`spellings.engine`).
"""

from __future__ import annotations

from collections.abc import Mapping

from forerun.spellings.engine import Spelling

_TERMINAL = "generate answers once, chat goes on; what is shown does not change the answer"
_LOG = "what there is to say is said on stderr"
_MEMORY = "weights and cache lie in this machine's memory"
_CORES = "threads run on the cores that the process may use"
_CONTEXT = "a text ends where the context does"
_FILTERS = "the filters are top_k, top_p and min_p, penalties look at the whole text"

_SWITCHES: Mapping[str, str] = {
    _TERMINAL: (
        "-st --single-turn -i --interactive -if --interactive-first -mli --multiline-input -sp --special "
        "-e --escape --no-escape --color -co --simple-io --no-display-prompt --display-prompt"
    ),
    _LOG: (
        "-v --verbose --log-verbose --verbose-prompt --log-disable --log-prefix --log-timestamps "
        "--perf --no-perf --show-timings --no-show-timings"
    ),
    _MEMORY: (
        "--warmup --no-warmup --check-tensors --repack --no-repack -nr -kvo --kv-offload --no-kv-offload -nkvo "
        "--kv-unified -kvu --op-offload --no-op-offload --no-host -cmoe --cpu-moe --direct-io -dio"
    ),
    _CONTEXT: "--context-shift --no-context-shift --swa-full --offline",
    _CORES: "--cpu-strict --poll-batch",
}
_VALUED: Mapping[str, str] = {
    _LOG: "--log-file -lv --verbosity --log-verbosity --log-colors",
    _MEMORY: "-sm --split-mode -ts --tensor-split -mg --main-gpu -fit --fit -ncmoe --n-cpu-moe -dt",
    _CORES: "--numa -tb --threads-batch -C --cpu-mask -Cr --cpu-range --prio --poll",
    _CONTEXT: "--keep",
    _FILTERS: (
        "--samplers --sampler-seq --sampling-seq --repeat-last-n --mirostat-lr --mirostat-ent "
        "--dry-base --dry-allowed-length --dry-penalty-last-n --xtc-threshold --dynatemp-exp"
    ),
}
_NEUTRAL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("--mirostat", "--dry-multiplier", "--xtc-probability", "--dynatemp-range"), ("0", "0.0")
    ),
    **dict.fromkeys(("--typical", "--typical-p"), ("1", "1.0")),
    **dict.fromkeys(("--top-nsigma", "--top-n-sigma"), ("-1", "-1.0")),
}
"""Flags that would change the answer, with the values that ask for nothing."""

FLAGS: Mapping[str, Spelling] = {
    **{
        flag: Spelling(why=why, is_flag=True)
        for why, all in _SWITCHES.items()
        for flag in all.split()
    },
    **{flag: Spelling(why=why) for why, all in _VALUED.items() for flag in all.split()},
    "-dev": Spelling(
        values=dict.fromkeys(("none", "cpu")), why="--device says where the model runs"
    ),
    **{
        flag: Spelling(values=dict.fromkeys(values), why=_FILTERS)
        for flag, values in _NEUTRAL.items()
    },
}
