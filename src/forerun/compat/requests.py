"""Read what OpenAI's, Anthropic's, vLLM's, llama.cpp's and other servers' clients call the fields of a request.

One rule for all dialects. A field is (a) ours, under whatever name (`RENAMED`); (b) one that constrains the answer or
stands for what is not in the request (`ONLY`, `STATE`): accepted with the values that ask for nothing, else refused by
name; (c) anything else, and left out: clients gain fields at every release. A strict server refuses the latter, but for
the hints that clients send by themselves (`HINTS`). What is left out is collected for a header of the answer
(`collected`), and noted once on the log.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache

from forerun.core.errors import RequestError, short_repr, unknown
from forerun.core.params import MAX_SEED, SAMPLERS

_log = logging.getLogger("forerun")

CLOSE_MATCH = 0.85
"""How alike (`difflib`) a name is to the one that was meant: `temprature`, not `client_metadata`."""
LONGEST_NAME = 64
"""Letters of a name that is compared."""
MAX_COMPARED = 32
"""Unknown names of a request that are compared with all that are known."""
NOTED = 1024
"""Names that are remembered to be noted once."""

RENAMED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("max_completion_tokens", "max_output_tokens", "max_new_tokens", "maximum_tokens"),
            *("n_predict", "num_predict", "max_tokens_to_sample", "max_gen_tokens"),
        ),
        "max_tokens",
    ),
    **dict.fromkeys(
        (
            *("stop_sequences", "stop_sequence", "stop_strings", "stop_words", "stopping_strings"),
            *("stop_tokens", "stops"),
        ),
        "stop",
    ),
    **dict.fromkeys(("min_new_tokens", "min_length", "min_completion_tokens"), "min_tokens"),
    **dict.fromkeys(("repeat_penalty", "rep_pen"), "repetition_penalty"),
    **dict.fromkeys(("random_seed", "sampler_seed"), "seed"),
    **dict.fromkeys(
        ("thinking_budget_tokens", "thinking_token_budget", "reasoning_budget"), "thinking_budget"
    ),
    **dict.fromkeys(("n_cmpl", "num_return_sequences", "num_completions"), "n"),
    "ban_eos_token": "ignore_eos",
    "speculative.n_max": "max_draft",
    "guided_choice": "structured_outputs.choice",
    **dict.fromkeys(("guided_json", "json_schema"), "structured_outputs.json"),
    **dict.fromkeys(("guided_regex", "regex", "regex_pattern"), "structured_outputs.regex"),
    **dict.fromkeys(
        ("guided_grammar", "grammar", "grammar_string", "ebnf"), "structured_outputs.grammar"
    ),
}
"""Our field, or a part of one that is an object."""

_HINTS = """
user safety_identifier client_metadata metadata include store context_management service_tier verbosity
prompt_cache_key prompt_cache_retention prompt_cache_options truncation web_search_options audio
max_tool_calls cache_control inference_geo speed mcp_servers betas anthropic_beta anthropic_version
request_id rid priority cache_salt include_reasoning separate_reasoning return_tokens_as_token_ids
spaces_between_special_tokens mm_processor_kwargs
id_slot cache_prompt n_cache_reuse n_keep n_discard n_indent t_max_prompt_ms response_fields
repeat_last_n penalize_nl backend_sampling dynatemp_exponent xtc_threshold dry_allowed_length dry_base
dry_penalty_last_n dry_sequence_breakers mirostat_eta mirostat_tau adaptive_decay speculative.n_min
speculative.p_min speculative.type reasoning_control keep_alive num_ctx num_keep num_batch num_thread num_gpu
main_gpu use_mmap use_mlock numa low_vram penalize_newline user_id session_id timeout timeout_ms time
add_bos_token api_server api_type legacy_api do_sample max_tokens_second penalty_last_n rep_pen_range rep_pen_slope
repetition_decay repetition_penalty_range sampler_order sampler_priority smoothing_curve speculative_ngram
temperature_last trim_stop truncation_length"""
HINTS = frozenset(_HINTS.split())
"""Hints that clients of those servers send by themselves: left out as any unknown field, and allowed where a request
is read strictly."""

_NO_EFFECT = "nothing here follows it"
_NOT_SUPPORTED = "not supported: leave it out"
_FILTER = "the only filters are top_k, top_p and min_p"
_NO_STATE = "nothing is stored"
_TEXT_ONLY = "images, audio and video are not supported"
_DEPRECATED = "deprecated: use tools and tool_choice"
_BEAM_SEARCH = "beam search is not supported"
_LORA = "LoRA adapters are not supported"
_NONE: tuple[object, ...] = ("", [], {}, False)
"""What asks for nothing where a list, an object or a text would ask for something."""

STATE: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "previous_response_id": (f"{_NO_STATE}: send the items so far as input", ("",)),
    "conversation": (f"{_NO_STATE}: send the items so far as input", ("",)),
    "thread": (f"{_NO_STATE}: send all messages so far", ()),
    "context": (f"{_NO_STATE}: send all messages so far to /api/chat", ([], "")),
    "container": (f"{_NO_STATE}, and no code is run", ()),
    "prompt": (f"{_NO_STATE}: send its text", ()),
    "session_params": (f"{_NO_STATE}: send all messages so far", ({},)),
    "history": (f"{_NO_STATE}: send all messages so far", _NONE),
    "chat_history": (f"{_NO_STATE}: send all messages so far", _NONE),
}
"""Fields of any dialect that stand for what is not in the request, where a route has no field of that name.

Without what they stand for the answer would be one to another question. As in `ONLY`.
"""

ONLY: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "background": ("there are no background requests", (False,)),
    "modalities": ("output is text only", (["text"], [])),
    "chat_template": ("the chat template is an option of the server", ("",)),
    "template": ("the chat template is an option of the server", ("",)),
    "functions": (_DEPRECATED, ([],)),
    "function_call": (_DEPRECATED, ("none", "auto")),
    "best_of": ("all n completions are returned: use n", (1, 0)),
    "early_stopping": (_BEAM_SEARCH, (False,)),
    "length_penalty": (_BEAM_SEARCH, (1, 0)),
    "use_beam_search": (_BEAM_SEARCH, (False,)),
    "beam_search": (_BEAM_SEARCH, (False,)),
    **dict.fromkeys(("num_beams", "beam_width"), (_BEAM_SEARCH, (1, 0))),
    **dict.fromkeys(
        (
            *("dry_multiplier", "dynatemp_range", "mirostat", "mirostat_mode", "xtc_probability"),
            *("top_a", "epsilon_cutoff", "eta_cutoff", "smoothing_factor", "penalty_alpha", "skew"),
            *("top_n_sigma", "top_nsigma", "nsigma", "no_repeat_ngram_size", "dynatemp"),
            *("dynamic_temperature", "diversity_penalty"),
        ),
        (_FILTER, ("<=0", False)),
    ),
    **dict.fromkeys(("typical_p", "typical", "tfs", "tfs_z"), (_FILTER, (">=1",))),
    "min_keep": (_FILTER, ("<=1",)),
    "adaptive_target": (_FILTER, ("<=-0.001",)),
    "encoder_repetition_penalty": (_FILTER, (1,)),
    **dict.fromkeys(
        ("guidance_scale", "cfg_scale"), ("classifier-free guidance is not supported", (1, 0))
    ),
    "negative_prompt": ("classifier-free guidance is not supported", ("",)),
    "post_sampling_probs": ("log-probabilities are those of the raw logits", (False,)),
    "verbose": ("verbosity is an option of the server", (False,)),
    **dict.fromkeys(("images", "image_data", "image_urls"), (_TEXT_ONLY, _NONE)),
    **dict.fromkeys(("video_data", "audio_data", "videos", "audios"), (_TEXT_ONLY, _NONE)),
    **dict.fromkeys(
        (
            *("allowed_token_ids", "allowed_tokens", "bad_words", "bad_words_ids", "banned_tokens"),
            *("banned_strings", "banned_phrases", "banned_words", "custom_token_bans"),
            *("force_words_ids", "sequence_bias", "logit_bias_exp"),
            *("logits_processors", "custom_logit_processor", "logits_processor_args", "stop_regex"),
            *("suppress_tokens", "begin_suppress_tokens", "structural_tag"),
            *("guided_whitespace_pattern", "response_prefix"),
        ),
        (_NOT_SUPPORTED, _NONE),
    ),
    **dict.fromkeys(
        ("lora", "loras", "lora_path", "lora_adapter", "lora_request", "adapter_id", "adapter"),
        (_LORA, _NONE),
    ),
    **dict.fromkeys(
        ("response_schema", "output_schema", "schema", "response_mime_type"),
        ("use response_format", ("", {}, "text/plain")),
    ),
    **dict.fromkeys(
        ("documents", "input_ids", "input_embeds", "prompt_embeds", "file_ids"),
        ("not supported: put its text into the conversation", _NONE),
    ),
    "truncate_prompt_tokens": ("prompts are not truncated", ("<=-1",)),
}
"""Why a field cannot be had, and the values that ask for nothing; `<=0` is any number that is."""

NAMES = (*RENAMED, *HINTS, *STATE, *ONLY)
_NEWER = {"max_tokens": "max_completion_tokens"}
"""By field: the newer of two names that proxies send both, which holds, as with OpenAI, vLLM and llama.cpp."""
_EMPTY: Mapping[str, tuple[object, ...]] = {
    "logit_bias": ([], {}, ""),
    "stop": ("", [""]),
    **{
        name: ("",)
        for name, ours in RENAMED.items()
        if ours.startswith("structured_outputs") and not ours.endswith("choice")
    },
}
"""Values of our fields that are the same as none."""
_LEAST_TOP_P = 1e-9
"""What keeps the likeliest token alone, as 0 does elsewhere: no vocabulary is so large that another one has less."""


MAX_HEADER = 1024
"""Letters of the header."""
_BETWEEN = ", "


@dataclass(slots=True)
class IgnoredFields:
    """The fields of one request that were left out."""

    is_strict: bool = False
    """Whether a field that is unknown to everybody is an error."""
    names: dict[str, str] = field(default_factory=dict)
    """With the known name that may have been meant, or nothing; as many as the header has room for."""
    more: set[str] = field(default_factory=set)
    """The others, which are only counted."""
    num_compared: int = 0
    """Unknown names that were compared with all that are known."""
    _room: int = MAX_HEADER - len("and 100000 more")

    def add(self, name: str, meant: str = "") -> bool:
        """Take note of a field; False if there is no room for it."""
        if name in self.names:
            return True
        self._room -= len(_shown(name, meant)) + len(_BETWEEN)
        if self._room < 0:
            self.more.add(name)
            return False
        self.names[name] = meant
        return True

    def header(self) -> str:
        """Write them for a header of the answer.

        >>> IgnoredFields(names={"temprature": "temperature", "user": ""}, more={"x", "y"}).header()
        'temprature (did you mean temperature?), user, and 2 more'
        """
        shown = [_shown(name, meant) for name, meant in self.names.items()]
        return _BETWEEN.join([*shown, *([f"and {len(self.more)} more"] if self.more else [])])


_ignored: ContextVar[IgnoredFields | None] = ContextVar("ignored", default=None)


def _shown(name: str, meant: str) -> str:
    return _bare(name) + (f" (did you mean {meant}?)" if meant else "")


def _bare(name: str) -> str:
    """Write a name so that no header ends within it."""
    return re.sub(r"[^\w.:/+-]", "?", name[:LONGEST_NAME], flags=re.ASCII)


@contextmanager
def collected(*, is_strict: bool) -> Iterator[IgnoredFields]:
    """Collect what is left out of a request that is read within the block."""
    found = IgnoredFields(is_strict)
    token = _ignored.set(found)
    try:
        yield found
    finally:
        _ignored.reset(token)
        if found.more:
            _log.warning("and %d more fields of a request have no effect", len(found.more))


def read(
    given: Mapping[str, object], known: Collection[str] = ()
) -> tuple[dict[str, object], dict[str, str]]:
    """Rename a request's fields to ours, and say what each of them was called. A field that is null is not given.

    `known` are the fields of the route. Raises RequestError for a value that cannot be had here, and for two names of
    one field that differ.
    """
    fields: dict[str, object] = {}
    typed: dict[str, str] = {}
    for name, value in given.items():
        plain = snake(name, known)
        if value is None or value in _EMPTY.get(RENAMED.get(plain, plain), _EMPTY.get(plain, ())):
            continue
        if plain in known:
            ours, part = plain, ""
        elif plain in ONLY:
            _check(name, plain, value, ONLY)
            continue
        elif plain in HINTS:
            note(name, _NO_EFFECT)
            continue
        else:
            ours, _, part = RENAMED.get(plain, name).partition("." if plain in RENAMED else "\0")
        value = _meant(plain, ours, value)
        if part:
            value = _with_part(fields.pop(ours, None), part, value, name)
        newer = _NEWER.get(ours)
        if newer is not None and newer == snake(typed.get(ours, ""), known):
            continue
        if ours in fields and fields[ours] != value and plain != newer:
            raise RequestError(f"{name} and {typed[ours]} differ: give one of them")
        fields[ours], typed[ours] = value, name
    return fields, typed


def snake(name: str, known: Collection[str]) -> str:
    """Write a name as ours are, if it is one of them then: `maxTokens`, `Max-Tokens`."""
    if name in known or name in _KNOWN or not (name.isascii() and len(name) <= LONGEST_NAME):
        return name
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")
    return plain if plain in known or plain in _KNOWN else name


def _meant(name: str, ours: str, value: object) -> object:
    """Read a value that other servers have a meaning for."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if ours == "top_p" and is_number and value == 0:
        return _LEAST_TOP_P
    if ours == "temperature" and is_number and value < 0:  # type: ignore[operator]  # llama.cpp's greedy
        return 0.0
    if name in ("n_predict", "num_predict") and is_number and value == -2:  # to fill the context
        return -1
    if ours == "seed" and isinstance(value, int) and is_number and -(2**63) <= value < 2**64:
        return value if -1 <= value <= MAX_SEED else value & MAX_SEED
    if ours == "stop" and isinstance(value, list):
        return [one for one in value if one != ""]
    if ours == "samplers" and isinstance(value, str | list):
        return _samplers(value)
    return value


_SAMPLERS = {"temp": "temperature", "k": "top_k", "p": "top_p", "m": "min_p", "t": "temperature"}
"""Other names, and llama.cpp's letters; `e` is of its penalties."""


def _samplers(given: str | list[object]) -> list[str]:
    """Read llama.cpp's order of samplers, names or letters; those that are off here are left out."""
    names = [str(one).lower().replace("-", "_") for one in given]
    read = [_SAMPLERS.get(name, "penalties" if name == "e" else name) for name in names]
    return [name for name in dict.fromkeys(read) if name in SAMPLERS]


def _with_part(parts: object, part: str, value: object, name: str) -> dict[str, object]:
    """Add a part that has a name of its own to a field that is an object."""
    parts = {} if parts is None else parts
    if not isinstance(parts, Mapping) or part in parts:
        raise RequestError(f"{name} is given twice: give it once")
    return {**parts, part: value}


def stateless(given: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """Leave out the fields of `STATE` that ask for nothing, but for known ones. Raises RequestError for the others."""
    names = {
        name: plain for name in given if (plain := snake(name, known)) in STATE.keys() - {*known}
    }
    for name in sorted(names):
        if given[name] is not None:
            _check(name, names[name], given[name], STATE)
    return {name: value for name, value in given.items() if name not in names}


def _check(
    name: str, plain: str, value: object, table: Mapping[str, tuple[str, tuple[object, ...]]]
) -> None:
    why, neutral = table[plain]
    if not any(_is(value, choice) for choice in neutral):
        allowed = ", ".join(
            choice if isinstance(choice, str) and _RANGE.match(choice) else _word(choice)
            for choice in neutral
        )
        hint = f" (allowed: {allowed})" if allowed else ""
        message = f"{name}={short_repr(value)} is not possible here: {why}{hint}"
        raise RequestError(message, option=name)


_RANGE = re.compile(r"([<>])=(-?[\d.]+)$")


def _is(value: object, choice: object) -> bool:
    """Tell whether a value is one, or in a range, that asks for nothing."""
    bound = _RANGE.match(choice) if isinstance(choice, str) else None
    if bound is None or isinstance(value, bool) or not isinstance(value, int | float):
        return _word(value) == _word(choice)
    return value <= float(bound[2]) if bound[1] == "<" else value >= float(bound[2])


def _word(value: object) -> str:
    """Write a value as JSON, a whole number the same with and without a point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


_KNOWN = frozenset(NAMES)


def leave_out(strange: Set[str], known: Collection[str]) -> None:
    """Note fields that are not known here. With strict reading, raises RequestError for one that no server has."""
    found = _ignored.get()
    for name in sorted(strange & HINTS):  # within objects
        note(name, _NO_EFFECT)
    strange = strange - HINTS
    if strange and found is not None and found.is_strict:
        raise RequestError(unknown("field", min(strange), known, NAMES), option=min(strange))
    found = IgnoredFields() if found is None else found
    for name in sorted(strange):
        note(name, "it is unknown", _meant_by(name, known, found))


def _meant_by(name: str, known: Collection[str], found: IgnoredFields) -> str:
    """Return the known name that was probably meant, a letter or two off; empty if there is none."""
    if len(name) > LONGEST_NAME or found.num_compared >= MAX_COMPARED:
        return ""
    found.num_compared += 1
    close = get_close_matches(name.lower(), {*known, *RENAMED}, n=1, cutoff=CLOSE_MATCH)
    return close[0] if close else ""


def note(name: str, why: str, meant: str = "") -> None:
    """Collect a field that does nothing, and say so once on the log, and why."""
    found = _ignored.get()
    if found is None or found.add(name, meant):
        say_once(name, why, meant)


@lru_cache(maxsize=NOTED)
def say_once(name: str, why: str, meant: str) -> None:
    """Write it on the log."""
    hint = f"; did you mean {meant}?" if meant else ""
    _log.warning("field %s of a request has no effect: %s%s", short_repr(name), why, hint)
