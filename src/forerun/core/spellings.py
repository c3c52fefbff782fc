"""What vLLM, SGLang, llama.cpp and Hugging Face call our options, one line a name.

`CONFIGURATION` are names of `EngineConfig`'s fields, `DRAFTING` of drafters' options, `METHODS` of drafters. A name
without a meaning here is accepted with a note on the log, so that a configuration moves over as it is; a value that
asks for something that cannot be done here is an error that quotes it. docs/spellings.md is made of these tables.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from forerun.core.errors import ConfigError

_log = logging.getLogger("forerun")


@dataclass(frozen=True, slots=True)
class Spelling:
    """A name of another engine: what it becomes, or why it has no effect."""

    becomes: tuple[str, ...] = ()
    """Our option: of several, the one the drafter has. Empty: no effect."""
    values: Mapping[str, object] | None = None
    """What the allowed values are here; None: any value, as it is."""
    why: str = ""
    """Why it has no effect, or what else to do where a value is not allowed."""
    implies: str = ""
    """The drafter that is meant where none is named."""
    off: float | None = None
    """The value that asks for nothing."""
    takes: Literal["a value", "nothing", "perhaps"] = "a value"
    """On the command line."""

    def read(self, typed: str, value: object) -> object:
        """What a value is here. Raises ConfigError with what was typed."""
        if self.values is None:
            return value
        word = "true" if value is True else "false" if value is False else str(value).lower()
        if word not in self.values:
            allowed = f" (allowed: {', '.join(self.values)})" if self.values else ""
            raise ConfigError(f"{said(typed, value)} is not possible here: {self.why}{allowed}")
        return self.values[word]

    def is_off(self, value: object) -> bool:
        """True for the value that asks for nothing."""
        return self.off is not None and str(value) in (f"{self.off:g}", f"{self.off:.1f}")

    def note(self, typed: str, value: object) -> None:
        """Say once that it has no effect. Raises ConfigError for a value that would have to have one."""
        self.read(typed, value)
        note(typed, value, self.why)


def plain(typed: str) -> str:
    """A name in the tables: `-ngl` is n_gpu_layers, `--draft-max` is draft_max."""
    return SHORT.get(typed) or typed.lstrip("-").replace("-", "_")


def said(typed: str, value: object) -> str:
    """A name and its value as they were typed: `-ngl 99`, `dtype='auto'`."""
    if not typed.startswith("-"):
        return f"{typed}={value!r}"
    return typed if isinstance(value, bool) else f"{typed} {value}"


def note(typed: str, value: object, why: str) -> None:
    """Say once that something has no effect."""
    _warn(f"{said(typed, value)} has no effect: {why}")


@cache
def _warn(message: str) -> None:
    _log.warning(message)


def _is(*becomes: str, implies: str = "") -> Spelling:
    return Spelling(becomes, implies=implies)


def _no_effect(why: str, *allowed: str) -> Spelling:
    return Spelling((), dict.fromkeys(allowed) if allowed else None, why)


def _flag(why: str, *allowed: str) -> Spelling:
    return Spelling((), dict.fromkeys(allowed) if allowed else None, why, takes="nothing")


def _refused(why: str) -> Spelling:
    """A flag that cannot be had, and may be switched off."""
    return Spelling((), {"false": None}, why, takes="nothing")


_ONE_PROCESS = "a model runs in one process, on one device"
_STORED = "weights are used as they are stored; quant rounds them"
_REVISION = "the main revision is taken; another one is given by its folder"
_KV = "keys and values are kept as fp32, fp16, int8, k8v4 or int4"
_PRECISIONS = {
    "auto": "auto",
    **dict.fromkeys(("fp16", "f16", "float16", "half"), "fp16"),
    **dict.fromkeys(("fp32", "f32", "float32", "float"), "fp32"),
    **dict.fromkeys(("int8", "q8_0"), "int8"),
    "k8v4": "k8v4",
    **dict.fromkeys(("int4", "q4_1"), "int4"),
}
_ON_CPU = "there are no layers on a GPU here; device says where the model runs"
_TEMPLATE = "the model's template is used; --raw goes without it"
_TERMINAL = "the terminal decides"
_TEXT = "prompts are text"
_CONTROLLER = "the controller decides by measured times; controller=False drafts in full"
_VERIFY = "drafts are checked token by token, so that the answers keep their distribution"
_ANY_QUANT = {"int8": "int8", "int4": "int4", "gguf": "none", "none": "none"}

_CONFIDENCE = Spelling(("min_confidence", "min_token_prob", "min_chance"), off=0)

CONFIGURATION: Mapping[str, Mapping[str, Spelling]] = {
    "vLLM": {
        "max_num_batched_tokens": _is("prefill_chunk"),
        "kv_cache_dtype": Spelling(("kv",), _PRECISIONS, _KV),
        "quantization": Spelling(("quant",), _ANY_QUANT, _STORED),
        "tokenizer": Spelling(("tokenizer",), None, "only the model itself"),
        "dtype": _no_effect(_STORED),
        "gpu_memory_utilization": _no_effect("memory_budget bounds the memory"),
        "kv_cache_memory_bytes": _no_effect("memory_budget bounds the memory"),
        "tensor_parallel_size": _no_effect(_ONE_PROCESS, "1"),
        "pipeline_parallel_size": _no_effect(_ONE_PROCESS, "1"),
        "data_parallel_size": _no_effect(_ONE_PROCESS, "1"),
        "distributed_executor_backend": _no_effect(_ONE_PROCESS),
        "disable_custom_all_reduce": _flag(_ONE_PROCESS),
        "trust_remote_code": _flag("code that comes with a model is never run"),
        "enforce_eager": _flag("there are no graphs to capture"),
        "max_seq_len_to_capture": _no_effect("there are no graphs to capture"),
        "compilation_config": _no_effect("there is nothing to compile"),
        "swap_space": _no_effect("a preempted request is computed again, not swapped"),
        "cpu_offload_gb": _no_effect("the weights are in the memory of the CPU"),
        "block_size": _no_effect("blocks of keys and values have 64 rows"),
        "num_gpu_blocks_override": _no_effect("memory_budget bounds the blocks"),
        "use_v2_block_manager": _flag("there is one cache of blocks"),
        "enable_prefix_caching": _flag("prefixes are always reused; the answers are the same"),
        "enable_chunked_prefill": _flag("prompts are always read in chunks, see prefill_chunk"),
        "async_scheduling": _flag("one pass follows the other"),
        "disable_log_stats": _flag("statistics are read with get_metrics, not logged"),
        "disable_log_requests": _flag("--no-log-requests says so"),
        "tokenizer_mode": _no_effect("a model has one tokenizer", "auto", "slow", "hf"),
        "skip_tokenizer_init": _flag("answers are text, so the tokenizer is needed", "false"),
        "load_format": _no_effect("the file says it", "auto", "safetensors", "gguf", "hf"),
        "download_dir": _no_effect("FORERUN_CACHE and HF_HOME say where models are kept"),
        "revision": _no_effect(_REVISION, "main"),
        "tokenizer_revision": _no_effect(_REVISION, "main"),
        "generation_config": _no_effect(
            "a model's own settings are the default, SamplingParams() has vLLM's", "auto"
        ),
        "served_model_name": _no_effect("only forerun serve gives a model names"),
        "runner": _no_effect("models generate", "auto", "generate"),
        "task": _no_effect("models generate", "auto", "generate"),
        "enable_lora": _flag("adapters are not supported; merge them into the model", "false"),
        "limit_mm_per_prompt": _no_effect("prompts are text"),
        "max_logprobs": _no_effect("a request may ask for 100"),
        "attention_backend": _no_effect("backend chooses the kernels"),
    },
    "SGLang": {
        "model_path": _is("model"),
        "context_length": _is("max_model_len"),
        "max_running_requests": _is("max_num_seqs"),
        "chunked_prefill_size": _is("prefill_chunk"),
        "mem_fraction_static": _no_effect("memory_budget bounds the memory"),
        "tp_size": _no_effect(_ONE_PROCESS, "1"),
    },
    "llama.cpp": {
        "n_ctx": _is("max_model_len"),
        "n_threads": _is("threads"),
        "n_parallel": _is("max_num_seqs"),
        "n_batch": _is("prefill_chunk"),
        "cache_type_k": Spelling(("kv",), _PRECISIONS, _KV),
        "cache_type_v": Spelling(("kv",), _PRECISIONS, _KV),
        "draft_min": _is("min_draft"),
        "n_gpu_layers": _no_effect(_ON_CPU),
        "main_gpu": _no_effect(_ON_CPU),
        "split_mode": _no_effect(_ON_CPU),
        "tensor_split": _no_effect(_ON_CPU),
        "n_ubatch": _no_effect("prefill_chunk rows are one pass"),
        "n_threads_batch": _no_effect("threads holds for prompts too"),
        "flash_attn": Spelling((), None, "attention has one kernel", takes="perhaps"),
        "mlock": _flag("packed weights are read into memory, which is not locked"),
        "no_mmap": _flag("packed weights are read into memory, not mapped"),
        "numa": _no_effect("threads are placed by the system"),
        "no_warmup": _flag("there is no warm-up"),
        "jinja": _flag(_TEMPLATE),
        "conversation": _flag(_TEMPLATE),
        "single_turn": _flag("forerun generate answers once, forerun chat goes on"),
        "interactive": _flag("forerun chat is the interactive command"),
        "escape": _flag("--stop reads \\n and \\t, a prompt is taken as it is"),
        "color": Spelling((), None, _TERMINAL, takes="perhaps"),
        "simple_io": _flag(_TERMINAL),
        "no_display_prompt": _flag("the prompt is never printed"),
        "log_disable": _flag("nothing is logged"),
        "verbose": _flag("--profile shows where the time goes"),
        "no_perf": _flag("the figures go to stderr"),
        "cont_batching": _flag("requests always share passes"),
        "kv_unified": _flag("all sequences share the memory"),
        "swa_full": _flag("keys and values of all tokens are kept"),
        "metrics": _flag("/metrics is always answered"),
        "cache_prompt": _flag("prefixes are always reused; the answers are the same"),
        "cache_reuse": _no_effect("prefixes are always reused"),
        "cache_ram": _no_effect("prefixes stay in the cache, memory_budget bounds it"),
        "cache_idle_slots": _flag("prefixes stay in the cache"),
        "threads_http": _no_effect("one loop answers all connections"),
        "reasoning_format": _no_effect("what a model thinks is part of its text", "none", "auto"),
        "no_mmproj": _flag(_TEXT),
        "mmproj": Spelling((), {}, _TEXT),
        "mmproj_url": Spelling((), {}, _TEXT),
        "media_path": Spelling((), {}, _TEXT),
        "context_shift": _refused("a text ends where the context does; -c makes it longer"),
        "reranking": _refused("models that rank are not supported"),
        "lora": Spelling((), {}, "adapters are not supported; merge them into the model"),
        "slot_save_path": Spelling((), {}, "the cache is not written to disk"),
    },
    "Hugging Face": {
        "device_map": _is("device"),
        "torch_dtype": _no_effect(_STORED),
        "attn_implementation": _no_effect("backend chooses the kernels"),
        "low_cpu_mem_usage": _flag("weights are mapped, not copied"),
    },
}
"""Names of `EngineConfig`'s fields."""

DRAFTING: Mapping[str, Mapping[str, Spelling]] = {
    "vLLM": {
        "num_speculative_tokens": _is("num_draft"),
        "num_speculative_tokens_per_batch_size": _is("num_draft"),
        "speculative_model": _is("model", implies="draft_model"),
        "prompt_lookup_max": _is("ngram_max", implies="prompt_lookup"),
        "prompt_lookup_min": _is("ngram_min", implies="prompt_lookup"),
        "ngram_prompt_lookup_max": _is("ngram_max", implies="prompt_lookup"),
        "ngram_prompt_lookup_min": _is("ngram_min", implies="prompt_lookup"),
        "suffix_decoding_max_tree_depth": _is("max_depth", implies="suffix"),
        "suffix_decoding_max_spec_factor": _is("factor", implies="suffix"),
        "suffix_decoding_min_token_prob": _is("min_token_prob", implies="suffix"),
        "suffix_decoding_max_cached_requests": _no_effect("shared_tokens bounds what is kept"),
        "quantization": _is("quant"),
        "max_model_len": _no_effect("a draft's context is the target's, or its own if shorter"),
        "disable_by_batch_size": _no_effect(_CONTROLLER),
        "speculative_disable_by_batch_size": _no_effect(_CONTROLLER),
        "enable_adaptive_verification": _no_effect(_CONTROLLER),
        "rejection_sample_method": _no_effect(
            _VERIFY, "standard", "strict", "probabilistic", "block"
        ),
        "acceptance_method": _no_effect(_VERIFY, "rejection_sampler"),
        "draft_sample_method": _no_effect(
            "temperature=0 of the drafter drafts greedily, the answers keep their distribution",
            *("greedy", "probabilistic"),
        ),
        "use_heterogeneous_vocab": _no_effect("a draft has the target's vocabulary", "false"),
        "parallel_drafting": _no_effect("a draft model guesses token by token", "false"),
        "synthetic_acceptance_rate": Spelling((), {}, _VERIFY),
        "synthetic_acceptance_rates": Spelling((), {}, _VERIFY),
        "synthetic_acceptance_length": Spelling((), {}, _VERIFY),
        "draft_tensor_parallel_size": _no_effect(_ONE_PROCESS, "1"),
        "tensor_parallel_size": _no_effect(_ONE_PROCESS, "1"),
        "revision": _no_effect(_REVISION, "main"),
        "code_revision": _no_effect("code that comes with a model is never run"),
        "enforce_eager": _no_effect("there are no graphs to capture"),
        "kv_cache_dtype": _no_effect("a draft's keys and values are kept as its backend does best"),
        "draft_load_config": _no_effect("the file says it"),
        "attention_backend": _no_effect("backend chooses the kernels"),
        "moe_backend": _no_effect("backend chooses the kernels"),
        "disable_logprobs": _no_effect("a request says whether it wants logprobs"),
        "disable_log_stats": _no_effect("statistics are read with get_metrics, not logged"),
        "disable_mqa_scorer": _no_effect("one pass checks all drafts"),
        "disable_padded_drafter_batch": _no_effect("rows are never padded"),
    },
    "SGLang": {
        "speculative_num_draft_tokens": _is("num_draft"),
        "speculative_num_steps": _no_effect("num_draft tokens take as many steps as they need"),
        "speculative_eagle_topk": _no_effect("branch=2,2,1 of the drafter makes a tree", "1"),
        "speculative_draft_model_path": _is("model", implies="draft_model"),
        "speculative_ngram_max_match_window_size": _is("ngram_max", implies="prompt_lookup"),
        "speculative_ngram_min_match_window_size": _is("ngram_min", implies="prompt_lookup"),
    },
    "llama.cpp": {
        "draft": _is("num_draft"),
        "draft_n": _is("num_draft"),
        "draft_max": _is("num_draft"),
        "draft_n_max": _is("num_draft"),
        "spec_draft_n_max": _is("num_draft"),
        "draft_p_min": _CONFIDENCE,
        "spec_draft_p_min": _CONFIDENCE,
        "draft_p_split": _no_effect("branch=2,2,1 of the drafter makes a tree"),
        "spec_draft_p_split": _no_effect("branch=2,2,1 of the drafter makes a tree"),
        "model_draft": _is("model", implies="draft_model"),
        "spec_draft_model": _is("model", implies="draft_model"),
        "hf_repo_draft": _is("model", implies="draft_model"),
        "spec_draft_hf": _is("model", implies="draft_model"),
        "spec_ngram_simple_size_n": _is("ngram_max", "max_depth"),
        "spec_ngram_simple_size_m": _is("num_draft"),
        "spec_ngram_simple_min_hits": _no_effect("one earlier place is enough"),
        "spec_ngram_map_k_size_n": _is("ngram_max", "max_depth"),
        "spec_ngram_map_k_size_m": _is("num_draft"),
        "spec_ngram_map_k_min_hits": _no_effect("one earlier place is enough"),
        "n_gpu_layers_draft": _no_effect(_ON_CPU),
        "spec_draft_ngl": _no_effect(_ON_CPU),
        "ctx_size_draft": _no_effect("a draft's context is the target's, or its own if shorter"),
        "threads_draft": _no_effect("threads holds for the draft too"),
        "cache_type_k_draft": _no_effect(_KV, *_PRECISIONS),
        "cache_type_v_draft": _no_effect(_KV, *_PRECISIONS),
    },
    "Hugging Face": {
        "assistant_model": _is("model", implies="draft_model"),
        "assistant_early_exit": _is("exit", implies="early_exit"),
        "num_assistant_tokens": _is("num_draft"),
        "num_assistant_tokens_schedule": _no_effect(_CONTROLLER),
        "assistant_confidence_threshold": _CONFIDENCE,
        "prompt_lookup_num_tokens": _is("num_draft", implies="prompt_lookup"),
        "max_matching_ngram_size": _is("ngram_max", implies="prompt_lookup"),
        "max_ngram_size": _is("ngram_max", implies="prompt_lookup"),
    },
    "MLX": {
        "num_draft_tokens": _is("num_draft"),
        "draft_model": _is("model", implies="draft_model"),
    },
}
"""Names of drafters' options, in a `speculative_config` and beside it."""

BESIDE: Mapping[str, Spelling] = {
    "draft_model": _is("model", implies="draft_model"),
    "num_draft": _is("num_draft"),
    "draft_quant": _is("quant"),
    "draft_head_bits": _is("head_bits"),
}
"""Fields of `EngineConfig` that are an option of the drafter."""

SHORT: Mapping[str, str] = {
    "-ngl": "n_gpu_layers",
    "--gpu-layers": "n_gpu_layers",
    "-ngld": "n_gpu_layers_draft",
    "--gpu-layers-draft": "n_gpu_layers_draft",
    "-mg": "main_gpu",
    "-sm": "split_mode",
    "-ts": "tensor_split",
    "-fa": "flash_attn",
    "-b": "n_batch",
    "--batch-size": "n_batch",
    "-ub": "n_ubatch",
    "--ubatch-size": "n_ubatch",
    "-tb": "n_threads_batch",
    "--threads-batch": "n_threads_batch",
    "-td": "threads_draft",
    "-cd": "ctx_size_draft",
    "-ctk": "cache_type_k",
    "-ctv": "cache_type_v",
    "-ctkd": "cache_type_k_draft",
    "-ctvd": "cache_type_v_draft",
    "-hfd": "hf_repo_draft",
    "-hfrd": "hf_repo_draft",
    "--no-mmap": "no_mmap",
    "-np": "n_parallel",
    "--parallel": "n_parallel",
    "-cnv": "conversation",
    "-st": "single_turn",
    "-i": "interactive",
    "-e": "escape",
    "-co": "color",
    "-v": "verbose",
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-q": "quantization",
    "-cb": "cont_batching",
    "-kvu": "kv_unified",
    "--rerank": "reranking",
    "-mm": "mmproj",
}
"""Flags of llama.cpp and vLLM that are not such a name with dashes."""

METHOD_KEYS = ("method", "spec_type", "speculative_algorithm")
"""Names of what says which drafter."""

METHODS: Mapping[str, str] = {
    "ngram": "prompt_lookup",
    "[ngram]": "prompt_lookup",
    "ngram_gpu": "prompt_lookup",
    "ngram-simple": "prompt_lookup",
    "ngram-map-k": "prompt_lookup",
    "ngram-map-k4v": "suffix",
    "ngram-mod": "suffix",
    "ngram-cache": "suffix",
    "draft": "draft_model",
    "draft-simple": "draft_model",
    "STANDALONE": "draft_model",
    "draft-eagle3": "eagle3",
}
"""Names of the drafters we have."""

NOT_YET = ("eagle", "mtp", "nextn", "dflash", "dspark")
"""Methods of theirs that we do not have; `..._mtp` is one as well."""

_METHODS = {name.replace("-", "_").lower(): ours for name, ours in METHODS.items()}
_CONFIGURATION = {name: one for names in CONFIGURATION.values() for name, one in names.items()}
_DRAFTING = {name: one for names in (*DRAFTING.values(), BESIDE) for name, one in names.items()}


def configuration(typed: str) -> Spelling | None:
    """What a name of a field is here; a flag may be switched off by `--no-`."""
    word = plain(typed)
    return _CONFIGURATION.get(word) or _CONFIGURATION.get(word.removeprefix("no_"))


def drafting(typed: str) -> Spelling | None:
    """What a name of a drafter's option is here."""
    return _DRAFTING.get(plain(typed))


def method(typed: str) -> str | None:
    """The drafter that another engine's method is."""
    return _METHODS.get(typed.replace("-", "_").lower())


def is_drafting(typed: str) -> bool:
    """True for a name that says which drafter, or how it drafts."""
    return plain(typed) in _DRAFTING or plain(typed) in METHOD_KEYS


def known_names(with_drafting: bool = True) -> Collection[str]:
    """All names of other engines, or those of `EngineConfig` alone."""
    return {*_CONFIGURATION, *((*_DRAFTING, *METHOD_KEYS) if with_drafting else ())}


def aliases_of(option: str) -> tuple[str, ...]:
    """Other names of a drafter's option."""
    return tuple(
        name for name, one in _DRAFTING.items() if option in one.becomes and name != option
    )


def is_not_yet(method: str) -> bool:
    """True for a method that others have and we do not."""
    word = plain(method).lower().removeprefix("draft_")
    return word in NOT_YET or word.endswith("_mtp")


def read_object(typed: str, text: str) -> dict[str, object]:
    """A JSON object. Raises ConfigError."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{typed} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{typed} must be a JSON object, got {text}")
    return value
