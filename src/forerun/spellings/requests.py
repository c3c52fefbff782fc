"""Read what OpenAI's, Anthropic's, vLLM's and llama.cpp's clients call the fields of a request.

A field without a meaning here is left out, and noted once on the log by its name alone; so is one that is not known,
if it is no slip of a name that is: clients gain fields at every release. One that would have to change the answer and
cannot is accepted with the values that ask for nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import lru_cache

from forerun.core.errors import RequestError, short_repr

_log = logging.getLogger("forerun")

SLIP = 0.85
"""How alike (`difflib`) a name is to the one that was meant: `temprature`, not `client_metadata`."""
LONGEST_SLIP = 64
"""Letters of a name that is compared."""
NOTED = 1024
"""Names that are remembered to be noted once."""

RENAMED: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "grammar": "structured_outputs.grammar",
    "json_schema": "structured_outputs.json",
    "n_cmpl": "n",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "speculative.n_max": "max_draft",
    "max_new_tokens": "max_tokens",
    "thinking_budget_tokens": "thinking_budget",
    "thinking_token_budget": "thinking_budget",
    "reasoning_budget": "thinking_budget",
}
"""Our field, or a part of one that is an object."""

NO_EFFECT: Mapping[str, tuple[str, ...]] = {
    "requests are not distinguished by user": ("user", "safety_identifier"),
    "nothing is stored": ("metadata", "include", "context_management", "store"),
    "prompts are not cut": ("truncation",),
    "all requests are served alike": ("service_tier", "id_slot"),
    "prefixes are always reused": (
        *("prompt_cache_key", "prompt_cache_retention", "cache_control"),
        *("cache_prompt", "n_cache_reuse"),
    ),
    "reasoning_format says where thoughts are": ("include_reasoning",),
    "the prompt says how long an answer is wanted": ("verbosity",),
    "a text ends where the context does": ("n_keep", "n_discard", "num_keep"),
    "the server's options say it": ("num_ctx", "num_batch", "num_thread", "num_gpu", "use_mmap"),
    "penalties look at the whole text": ("repeat_last_n",),
    "the controller says how much is drafted": ("speculative.n_min", "speculative.p_min"),
    "the filters are top_k, top_p and min_p, in this order": (
        *("samplers", "backend_sampling", "dynatemp_exponent", "xtc_threshold"),
        *("dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers"),
        *("mirostat_eta", "mirostat_tau", "adaptive_decay"),
    ),
    "no tokenizer here puts any": ("spaces_between_special_tokens",),
}
"""Fields that are left out, by the reason."""

_NOT_YET = "it is not supported yet; leave it out"
_FILTER = "the filters are top_k, top_p and min_p"
_NO_STATE = "nothing is stored"
_NO_PICTURES = "this server reads no pictures"
_OLDER = "it is the older name: give tools and tool_choice"

STATE: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "previous_response_id": (f"{_NO_STATE}: send the items so far as input", ()),
    "conversation": (f"{_NO_STATE}: send the items so far as input", ()),
    "thread": (f"{_NO_STATE}: send all messages so far", ()),
    "context": (f"{_NO_STATE}: send all messages so far to /api/chat", ([],)),
    "container": (f"{_NO_STATE}, and no code is run", ()),
    "prompt": (f"{_NO_STATE}: send its text", ()),
}
"""Fields of any dialect that stand for what is not in the request, where a route has no field of that name.

Without what they stand for the answer would be one to another question. As in `ONLY`.
"""

ONLY: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "background": ("requests are answered at once", (False,)),
    "modalities": ("answers are text", (["text"],)),
    "chat_template": ("templates are the server's", ()),
    "functions": (_OLDER, ([],)),
    "function_call": (_OLDER, ("none", "auto")),
    "best_of": ("all n completions are returned", (1,)),
    "early_stopping": ("there is no beam search", (False,)),
    "length_penalty": ("there is no beam search", (1,)),
    "use_beam_search": ("there is no beam search", (False,)),
    "dry_multiplier": (_FILTER, (0,)),
    "dynatemp_range": (_FILTER, (0,)),
    "mirostat": (_FILTER, (0,)),
    "min_keep": (_FILTER, (0,)),
    "top_n_sigma": (_FILTER, (-1,)),
    "adaptive_target": (_FILTER, (-1,)),
    "typical_p": (_FILTER, (1,)),
    "xtc_probability": (_FILTER, (0,)),
    "post_sampling_probs": ("log-probabilities are of the raw logits", (False,)),
    "verbose": ("the log says what there is to say", (False,)),
    "t_max_predict_ms": (_NOT_YET, (0, -1)),
    "images": (_NO_PICTURES, ([],)),
    "image_data": (_NO_PICTURES, ([],)),
    "template": ("templates are the server's", ("",)),
    "allowed_token_ids": (_NOT_YET, ([],)),
    "bad_words": (_NOT_YET, ([],)),
    "logits_processors": (_NOT_YET, ([],)),
    "structural_tag": (_NOT_YET, ()),
    "truncate_prompt_tokens": ("prompts are not cut", (-1,)),
}
"""Why a field cannot be had, and the values that ask for nothing."""

_WHY = {name: why for why, names in NO_EFFECT.items() for name in names}
NAMES = (*RENAMED, *_WHY, *STATE, *ONLY)


def read(given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """Rename a request's fields to ours, and say what each of them was called. A field that is null is not given.

    Raises RequestError for a value that cannot be had here, and for two names of one field that differ.
    """
    fields: dict[str, object] = {}
    typed: dict[str, str] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in ONLY:
            _check(name, value, ONLY)
        elif name in _WHY:
            note(name, _WHY[name])
        else:
            ours, _, part = RENAMED.get(name, name).partition("." if name in RENAMED else "\0")
            if part:
                value = _with_part(fields.pop(ours, None), part, value, name)
            if ours in fields and fields[ours] != value:
                raise RequestError(f"{name} and {typed[ours]} differ: give one of them")
            fields[ours], typed[ours] = value, name
    return fields, typed


def _with_part(parts: object, part: str, value: object, name: str) -> dict[str, object]:
    """Add a part that has a name of its own to a field that is an object."""
    parts = {} if parts is None else parts
    if not isinstance(parts, Mapping) or part in parts:
        raise RequestError(f"{name} is given twice: give it once")
    return {**parts, part: value}


def stateless(given: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """Leave out the fields of `STATE` that ask for nothing, but for known ones. Raises RequestError for the others."""
    names = given.keys() & (STATE.keys() - {*known})
    for name in sorted(names):
        if given[name] is not None:
            _check(name, given[name], STATE)
    return {name: value for name, value in given.items() if name not in names}


def _check(name: str, value: object, table: Mapping[str, tuple[str, tuple[object, ...]]]) -> None:
    why, neutral = table[name]
    allowed = [_word(choice) for choice in neutral]
    if _word(value) not in allowed:
        hint = f" (allowed: {', '.join(allowed)})" if allowed else ""
        message = f"{name}={short_repr(value)} is not possible here: {why}{hint}"
        raise RequestError(message, option=name)


def _word(value: object) -> str:
    """Write a value as JSON, a whole number the same with and without a point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def is_slip(name: str, known: Collection[str]) -> bool:
    """Tell whether an unknown name is one of these with a letter or two wrong."""
    is_short = len(name) <= LONGEST_SLIP
    return is_short and bool(get_close_matches(name.lower(), {*known, *NAMES}, n=1, cutoff=SLIP))


@lru_cache(maxsize=NOTED)
def note(name: str, why: str) -> None:
    """Say once that a field does nothing, and why."""
    _log.warning("field %s of a request has no effect: %s", short_repr(name), why)
