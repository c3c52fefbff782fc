"""What other engines call our options: keywords of `LLM`, keys of `speculative_config`, flags of the commands.

Names of `EngineConfig`'s fields stand with the fields (`core.options.option`); here are those of drafters and their
options, and all that has no effect, as quickstarts, manuals and Dockerfiles of vLLM, llama.cpp and Hugging Face use
them; docs/compatibility.md is made of both. A name without effect is accepted with a note on the log, so that a command
moves over as it is; a value that asks for something that cannot be done here is an error that quotes it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from forerun.core import options
from forerun.core.config import AUTO, EngineConfig
from forerun.core.errors import ConfigError, given_as, unknown

_log = logging.getLogger("forerun")

SPECULATIVE = "speculative_config"
METHODS: Mapping[str, str] = {
    "ngram": "prompt_lookup",
    "ngram-simple": "prompt_lookup",
    "ngram-mod": "suffix",
    "draft-simple": "draft_model",
    "draft-eagle3": "eagle3",
    "draft-dflash": "dflash",
    "draft-dspark": "dflash",
    "dspark": "dflash",
}
"""vLLM's and llama.cpp's names of drafters."""
DRAFTING: Mapping[str, str] = {
    "num_speculative_tokens": "num_draft",
    "prompt_lookup_max": "ngram_max",
    "prompt_lookup_min": "ngram_min",
    "draft_p_min": "min_chance",
    "spec_draft_p_min": "min_chance",
    "assistant_model": "model",
    "num_assistant_tokens": "num_draft",
    "assistant_confidence_threshold": "min_chance",
    "prompt_lookup_num_tokens": "num_draft",
    "max_matching_ngram_size": "ngram_max",
}
"""vLLM's, llama.cpp's and Hugging Face's names of drafters' options."""

_FILTERS = "the only filters are top_k, top_p and min_p; penalties apply to the whole text"
_WHY: Mapping[str, str] = {
    "weights keep the format of the file; the option quant rounds them": (
        "--dtype= --torch-dtype= --quantization-param-path="
    ),
    "memory_budget limits the memory": (
        "--gpu-memory-utilization= --swap-space= --cpu-offload-gb=0|0.0 --kv-cache-memory-bytes= "
        "--num-gpu-blocks-override= --max-num-partial-prefills= --long-prefill-token-threshold= "
        "--enable-sleep-mode"
    ),
    "code from model repositories is never run": "--trust-remote-code",
    "there are no CUDA graphs or compiled graphs": (
        "--enforce-eager --max-seq-len-to-capture= --compilation-config= --cuda-graph-sizes= -O="
    ),
    "the prefix cache is always on and does not change answers": (
        "--enable-prefix-caching --no-enable-prefix-caching --cache-reuse= --cache-ram= --ctx-checkpoints= "
        "--slot-prompt-similarity= -sps= --prefix-caching-hash-algo= --slot-save-path= --cache-prompt "
        "--no-cache-prompt"
    ),
    "tool calls and reasoning are parsed by the model's chat template": (
        "--enable-auto-tool-choice --tool-call-parser= --reasoning-parser= --reasoning-format= --tool-parser-plugin= "
        "--reasoning-parser-plugin= --exclude-tools-when-tool-choice-none"
    ),
    "the chat template decides whether a model reasons; a request may change that": "--reasoning=on|auto",
    "continuous batching is always on": (
        "-cb --cont-batching -nocb --no-cont-batching --async-scheduling --no-async-scheduling --scheduling-policy= "
        "--data-parallel-size=1 -dp=1 --enable-expert-parallel --distributed-executor-backend="
    ),
    "the format is detected from the file": (
        "--load-format= --config-format= --model-impl= --tokenizer-mode=auto|fast|hf --model-loader-extra-config= "
        "--safetensors-load-strategy="
    ),
    "models are stored in Hugging Face's cache (HF_HOME)": ("--download-dir= --ignore-patterns="),
    "LoRA adapters are not supported": (
        "--lora-scale= --enable-lora=false --no-enable-lora --max-loras= --max-lora-rank= --max-cpu-loras="
    ),
    "the model's files decide": (
        "--hf-overrides={} --override-generation-config={} --hf-token= --rope-scaling={} --additional-config={} "
        "--disable-sliding-window=false --rope-freq-base=0|0.0 --rope-freq-scale=0|0.0 --yarn-orig-ctx=0 "
        "--yarn-ext-factor=-1|-1.0 --yarn-attn-factor=1|1.0|-1|-1.0 --yarn-beta-fast=32|32.0|-1|-1.0 "
        "--yarn-beta-slow=1|1.0|-1|-1.0 --rope-scaling-type=-1 --pooling-type=-1 --spm-infill=false"
    ),
    "the model's own generation_config.json is used": "--generation-config=auto",
    "models generate; --embeddings adds embeddings": (
        "--task=auto|generate|embed|embedding --runner=auto|generate|pooling --convert=auto|none|embed"
    ),
    "prompts are text or token ids": "--enable-prompt-embeds=false --enable-mm-embeds=false",
    "models are loaded whole, and answers are tokens": (
        "--skip-tokenizer-init=false --vocab-only=false --enable-return-routed-experts=false"
    ),
    "requests ask for log-probabilities": "--logits-all",
    "model and tokenizer are loaded together, from the main revision": (
        "--tokenizer=none --tokenizer-revision=none|main --revision=none|main --code-revision=none|main"
    ),
    "only the text part of a model is loaded": (
        "--language-model-only --limit-mm-per-prompt= --mm-processor-kwargs= --allowed-local-media-path= --no-mmproj "
        "--mm-processor-cache-gb= --interleave-mm-strings --no-mmproj-offload --disable-mm-preprocessor-cache"
    ),
    "the content format is detected from the chat template": ("--chat-template-content-format="),
    "usage always has these details": (
        "--enable-prompt-tokens-details --enable-force-include-usage --max-logprobs= --logprobs-mode=raw_logprobs "
        "--return-tokens-as-token-ids --enable-server-load-tracking"
    ),
    "all grammars use one library": "--guided-decoding-backend= --structured-outputs-config=",
    "a draft model has the context length of its target": "-cd= --ctx-size-draft=",
    "one thread answers HTTP": (
        "--threads-http= --api-server-count= --disable-frontend-multiprocessing"
    ),
    "requests have no time limit": "--timeout= -to=",
    "/props is always answered and is read-only": "--props",
    "--log-requests turns the access log on": (
        "--disable-log-requests --no-enable-log-requests --max-log-len= --disable-uvicorn-access-log"
    ),
    "blocks have a fixed length": "--block-size=",
    "chunked prefill is always on: see prefill_chunk": (
        "--enable-chunked-prefill --no-enable-chunked-prefill"
    ),
    "there is no pipeline parallelism; tensor_parallel_size splits each layer": (
        "-pp=1 --pipeline-parallel-size=1"
    ),
    "statistics are not logged: see get_metrics and /metrics": (
        "--disable-log-stats --no-disable-log-stats --show-hidden-metrics-for-version= --otlp-traces-endpoint="
    ),
    "layers are not offloaded to a GPU; device chooses where the model runs": (
        "-ngl= --gpu-layers= --n-gpu-layers= -ngld= --n-gpu-layers-draft="
    ),
    "attention has one kernel": "-fa=? --flash-attn=?",
    "prefill_chunk sets the rows of a pass": "-ub= --ubatch-size= --n-ubatch=",
    "weights are always read into memory": "--mmap --no-mmap --mlock --use-mmap --use-mlock",
    "prompt_cache keeps answers as well": "--prompt-cache-all",
    "the model's chat template is always used; --raw turns it off": "-cnv --conversation --jinja --no-jinja",
    "/metrics is always answered": "--metrics",
    "a draft model runs in one process, on one device": "--draft-tensor-parallel-size=1",
    "early exit is not supported; draft_model=self drafts with the whole model": (
        "--assistant-early-exit="
    ),
    "generate answers once, chat is interactive": (
        "-st --single-turn -i --interactive -if --interactive-first -mli --multiline-input -sp --special -e --escape "
        "--no-escape --color -co --simple-io --no-display-prompt --display-prompt"
    ),
    "messages go to stderr": (
        "-v --verbose --log-verbose --verbose-prompt --log-disable --log-prefix --log-timestamps --perf --no-perf "
        "--show-timings --no-show-timings --log-file= -lv= --verbosity= --log-verbosity= --log-colors= "
        "--uvicorn-log-level="
    ),
    "each operation has one implementation": (
        "--disable-custom-all-reduce --disable-async-output-proc --disable-cascade-attn --use-v2-block-manager "
        "--num-scheduler-steps= --worker-cls= --ray-workers-use-nsight --disable-hybrid-kv-cache-manager "
        "--optimization-level= --performance-mode= --moe-backend= --calculate-kv-scales --mamba-cache-dtype="
    ),
    "weights and KV cache are in main memory": (
        "--warmup --no-warmup --check-tensors --repack --no-repack -nr -kvo --kv-offload --no-kv-offload -nkvo "
        "--offload-kqv "
        "--defrag-thold= --kv-unified -kvu --op-offload --no-op-offload --no-host -cmoe --cpu-moe --direct-io -dio "
        "-sm= --split-mode= -ts= --tensor-split= -mg= --main-gpu= -fit= --fit= -ncmoe= --n-cpu-moe= -dt="
    ),
    "generation ends at the end of the context": (
        "--context-shift --no-context-shift --swa-full --offline --keep="
    ),
    "threads run on the cores of the process's affinity mask": (
        "--cpu-strict --poll-batch --numa= -tb= --threads-batch= -C= --cpu-mask= -Cr= --cpu-range= --prio= --poll="
    ),
    "--device chooses where the model runs": "-dev=none|cpu",
    _FILTERS: (
        "--last-n-tokens-size= "
        "--samplers= --sampler-seq= --sampling-seq= --repeat-last-n= --mirostat-lr= --mirostat-ent= --dry-base= "
        "--dry-allowed-length= --dry-penalty-last-n= --xtc-threshold= --dynatemp-exp= --mirostat=0 "
        "--dry-multiplier=0|0.0 --xtc-probability=0|0.0 --dynatemp-range=0|0.0 --typical=1|1.0 --typical-p=1|1.0 "
        "--top-nsigma=-1|-1.0 --top-n-sigma=-1|-1.0"
    ),
}
"""Why flags have no effect; behind = what they take: anything, `?` a value or none, or one that asks for nothing."""


@dataclass(frozen=True, slots=True)
class IgnoredFlag:
    """A flag of another engine that has no effect here."""

    flag: str
    why: str
    takes: str | None
    """None: no value; else see `_WHY`."""

    @property
    def values(self) -> list[str]:
        """The values that ask for nothing; of any value none."""
        return self.takes.split("|") if self.takes not in (None, "", "?") else []

    def note(self, name: str, value: object) -> None:
        """Say once that it has no effect. Raises ConfigError for a value that would have one."""
        asks = value not in (None, {}, []) and str(value).lower() not in self.values
        if self.values and asks:
            raise ConfigError(_not_possible(name, value, self.why, self.values))
        note(name, value, self.why)


IGNORED: Mapping[str, IgnoredFlag] = {
    flag: IgnoredFlag(flag, why, takes if equals else None)
    for why, all in _WHY.items()
    for flag, equals, takes in (word.partition("=") for word in all.split())
}

_PYTHON: Mapping[str, str] = {
    "n_ctx": "max_model_len",
    "n_threads": "threads",
    "n_batch": "prefill_chunk",
    "model_path": "model",
}
"""llama-cpp-python's keywords; 0 is what it chooses itself."""

_FIELDS = (
    {**_PYTHON}
    | {field.name: field.name for field in fields(EngineConfig)}
    | {
        keyword: name
        for name, flags in options.flags_of(EngineConfig).items()
        for flag in flags
        for keyword in (flag, flag[2:].replace("-", "_"))
        if flag.startswith("--") or keyword == flag
    }
)
"""Our field by every keyword and flag."""
_METADATA = {field.name: field.metadata for field in fields(EngineConfig)}
KEYWORDS = {flag[2:].replace("-", "_"): one for flag, one in IGNORED.items() if flag[1] == "-"}
KEYWORDS["embedding"] = IgnoredFlag("embedding", "embed answers with vectors", None)
_METHOD = re.compile(r"(^|\+)([^:+]+)")


def keyword(name: str) -> str:
    """Write a flag as the keyword that it is as well.

    >>> keyword("--max-num-seqs"), keyword("-np")
    ('max_num_seqs', '-np')
    """
    return name[2:].replace("-", "_") if name.startswith("--") else name


def is_known(name: str) -> bool:
    """Tell whether a keyword or flag is one of any engine."""
    key = keyword(name)
    return key in {*_FIELDS, *DRAFTING, *KEYWORDS, SPECULATIVE} or name in IGNORED


def methods_of(drafter: str) -> tuple[str, ...]:
    """List other engines' names of a drafter."""
    return tuple(name for name, ours in METHODS.items() if ours == drafter)


def names_of(option: str) -> tuple[str, ...]:
    """List other engines' names of a drafter's option."""
    return tuple(name for name, ours in DRAFTING.items() if ours == option)


def note(name: str, value: object, why: str) -> None:
    """Log once that something has no effect."""
    _warn(f"{_quote(name, value)} has no effect: {why}")


@cache
def _warn(message: str) -> None:
    _log.warning(message)


def _quote(name: str, value: object) -> str:
    """Repeat a name and its value as they were typed: `-ngl 99`, `dtype='auto'`."""
    if not name.startswith("-"):
        return f"{name}={value!r}"
    return name if isinstance(value, bool) or value == "" else f"{name} {value}"


def _not_possible(name: str, value: object, why: str, allowed: Collection[str]) -> str:
    return (
        f"{_quote(name, value)} is not possible here: {why} (allowed: {', '.join(sorted(allowed))})"
    )


def configure(
    model: str | EngineConfig, given: Mapping[str, Any]
) -> tuple[EngineConfig, dict[str, str]]:
    """Change a configuration, or a model's, by keywords or flags of any engine; and say what our options were called.

    Of two names of one option the last holds. Raises ConfigError for a name that is none, with the closest that is,
    and for a value that cannot be had.
    """
    config = model if isinstance(model, EngineConfig) else EngineConfig(model=str(model))
    chosen, draft, typed = dict[str, Any](), dict[str, object](), dict[str, str]()
    for name, value in given.items():
        key = keyword(name)
        if field := _FIELDS.get(key):
            if value is not None or key == field:
                chosen[field], typed[field] = _value(field, name, value), name
        elif value is None:
            continue
        elif key == SPECULATIVE:
            if not isinstance(value, str | Mapping):
                raise ConfigError(f"{name} must be a mapping or its JSON, got {value!r}")
            chosen["drafter"] = drafter(value, typed)
        elif key in DRAFTING:
            _draft(name, value, draft, typed)
        else:
            _ignore(name, value)
    method = draft.pop("method", None)
    if draft:
        chosen["draft_options"] = {**config.draft_options, **draft}
    if method and chosen.get("drafter", config.drafter) == AUTO:
        chosen["drafter"] = method
    with given_as(typed):
        return replace(config, **chosen), typed


def _ignore(name: str, value: object) -> None:
    """Note a name that has no effect. Raises ConfigError for one that no engine has."""
    ignored = IGNORED.get(name) or KEYWORDS.get(keyword(name))
    if ignored is None:
        names = {each for each in (*_FIELDS, *DRAFTING, *KEYWORDS) if each[0] != "-"}
        ours = {each.name for each in fields(EngineConfig)}
        raise ConfigError(unknown("option", name, {*ours, SPECULATIVE}, names - ours))
    ignored.note(name, value)


def _value(field: str, name: str, value: Any) -> Any:
    """Read the value of a field; a text, and another engine's word for one, are what they mean here."""
    if field == "drafter":
        return drafter(value)
    if name in _PYTHON and not value:
        return None
    values = None if keyword(name) == field else _METADATA[field].get("values")
    if values is not None:
        word = str(value).lower()
        if word not in values:
            raise ConfigError(_not_possible(name, value, _METADATA[field]["why"], values))
        return values[word]
    if isinstance(value, str) and name != field:
        with given_as({field: name}):
            return options.convert(field, value, options.type_hints(EngineConfig)[field])
    return value


def drafter(given: object, typed: dict[str, str] | None = None) -> Any:
    """Translate what says how to draft: `ngram:num_draft=4`, or a `speculative_config`, a mapping or its JSON.

    `typed` gets what our options were called. Raises ConfigError.
    """
    if isinstance(given, str) and given.lstrip().startswith("{"):
        given = options.read_object(SPECULATIVE, given)
    if isinstance(given, str):
        return _METHOD.sub(lambda match: match[1] + _method(match[2]), given)
    if not isinstance(given, Mapping):
        return given
    chosen: dict[str, object] = {}
    for name, value in given.items():
        if value is not None:
            _draft(name, value, chosen, {} if typed is None else typed)
    if method := chosen.pop("method", None):
        return {"method": drafter(method), **chosen}
    return chosen


def _draft(name: str, value: object, chosen: dict[str, object], typed: dict[str, str]) -> None:
    """Take one option of a drafter. As in vLLM the shortest n-gram bounds the longest one from below."""
    key = keyword(name)
    if ignored := KEYWORDS.get(key):
        ignored.note(name, value)
        return
    option = DRAFTING.get(key, key)
    chosen[option], typed[option] = value, name
    if key == "prompt_lookup_num_tokens":
        chosen.setdefault("method", "prompt_lookup")
    if key == "prompt_lookup_min":
        chosen.setdefault("ngram_max", value)


def _method(typed: str) -> str:
    return METHODS.get(typed.lower().replace("_", "-"), typed)
