"""What OpenAI, vLLM and llama-server call the fields of a request, one line a name; see `core/spellings.py`.

A field without a meaning here is accepted if leaving it out changes nothing about the answer, and noted once on the
log by its name alone. What would have to change the answer and cannot is refused in words.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cache

from forerun.core.errors import RequestError, short_repr
from forerun.core.spellings import Spelling

_log = logging.getLogger("forerun")


def _is(name: str) -> Spelling:
    return Spelling((name,))


def _no_effect(why: str) -> Spelling:
    return Spelling(why=why)


def _only(why: str, *allowed: object) -> Spelling:
    """Refused, but for the values that ask for nothing."""
    return Spelling(values={_word(value): value for value in allowed}, why=why)


def _word(value: object) -> str:
    """A value as JSON, a whole number the same with and without a point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


_NOT_YET = "it is not supported yet; leave it out"
_NO_STATE = "nothing is stored"
_TOOLS = "it is the older name: give tools and tool_choice"
_ONE_ACCOUNT = "requests are not told apart"
_FILTER = "the filters are top_k, top_p and min_p"
_TEXT = "answers are text"

REQUEST: Mapping[str, Mapping[str, Spelling]] = {
    "OpenAI": {
        "max_completion_tokens": _is("max_tokens"),
        "max_output_tokens": _is("max_tokens"),
        "user": _no_effect(_ONE_ACCOUNT),
        "safety_identifier": _no_effect(_ONE_ACCOUNT),
        "metadata": _no_effect(_NO_STATE),
        "store": _only(_NO_STATE, False),
        "service_tier": _no_effect("all requests are served alike"),
        "prompt_cache_key": _no_effect("prefixes are always reused"),
        "prompt_cache_retention": _no_effect("prefixes are always reused"),
        "reasoning_effort": _no_effect("chat_template_kwargs says how a model thinks"),
        "verbosity": _no_effect("the prompt says how long an answer is wanted"),
        "modalities": _only(_TEXT, ["text"]),
        "audio": _only(_TEXT),
        "background": _only("requests are answered at once", False),
        "conversation": _only(_NO_STATE),
        "include": _no_effect("there is nothing to include"),
        "previous_response_id": _only(f"{_NO_STATE}: send the items so far as input"),
        "reasoning": _no_effect("chat_template_kwargs says how a model thinks"),
        "truncation": _only("prompts are not cut", "disabled"),
        "functions": _only(_TOOLS, []),
        "function_call": _only(_TOOLS, "none", "auto"),
        "web_search_options": _only("there is no search"),
        "best_of": _only("all n completions are returned", 1),
    },
    "Anthropic": {
        "cache_control": _no_effect("prefixes are always reused"),
        "container": _only(_NO_STATE),
        "context_management": _no_effect("the conversation is read as it comes"),
        "stop_sequences": _is("stop"),
        "thinking": _no_effect("chat_template_kwargs says how a model thinks"),
    },
    "vLLM": {
        "allowed_token_ids": _only(_NOT_YET, []),
        "bad_words": _only(_NOT_YET, []),
        "cache_salt": _only("prefixes are shared by all requests"),
        "chat_template": _only("the model's own template is used; leave it out"),
        "chat_template_content_format": _only("the template decides", "auto", "string"),
        "continue_final_message": _only(_NOT_YET, False),
        "documents": _only(_NOT_YET, []),
        "early_stopping": _only("there is no beam search", False),
        "guided_choice": _is("structured_outputs.choice"),
        "guided_grammar": _is("structured_outputs.grammar"),
        "guided_json": _is("structured_outputs.json"),
        "guided_decoding_backend": _no_effect("there is one library for grammars"),
        "guided_regex": _is("structured_outputs.regex"),
        "guided_whitespace_pattern": _is("structured_outputs.whitespace_pattern"),
        "include_reasoning": _no_effect("what a model thinks is part of its text"),
        "length_penalty": _only("there is no beam search", 1),
        "logits_processors": _only("code of requests is never run", []),
        "priority": _only("first come, first served", 0),
        "request_id": _no_effect("an answer's id is made here"),
        "spaces_between_special_tokens": _no_effect("no tokenizer here puts any"),
        "truncate_prompt_tokens": _only("prompts are not cut"),
        "use_beam_search": _only("there is no beam search", False),
    },
    "llama.cpp": {
        "cache_prompt": _no_effect("prefixes are always reused; the answers are the same"),
        "adaptive_target": _only(_FILTER, -1),
        "adaptive_decay": _no_effect(_FILTER),
        "backend_sampling": _no_effect("the tokens are the same"),
        "dry_allowed_length": _no_effect(_FILTER),
        "dry_base": _no_effect(_FILTER),
        "dry_multiplier": _only(_FILTER, 0),
        "dry_penalty_last_n": _no_effect(_FILTER),
        "dry_sequence_breakers": _no_effect(_FILTER),
        "dynatemp_exponent": _no_effect(_FILTER),
        "dynatemp_range": _only(_FILTER, 0),
        "grammar": _is("structured_outputs.grammar"),
        "id_slot": _no_effect("the cache decides"),
        "json_schema": _is("structured_outputs.json"),
        "lora": _only("adapters are not supported; merge them into the model", []),
        "min_keep": _only(_FILTER, 0),
        "mirostat": _only(_FILTER, 0),
        "mirostat_eta": _no_effect(_FILTER),
        "mirostat_tau": _no_effect(_FILTER),
        "n_cache_reuse": _no_effect("prefixes are always reused"),
        "n_cmpl": _is("n"),
        "n_discard": _no_effect("a text ends where the context does"),
        "n_indent": _only(_NOT_YET, 0),
        "n_keep": _no_effect("a text ends where the context does"),
        "n_predict": _is("max_tokens"),
        "post_sampling_probs": _only("log-probabilities are of the raw logits", False),
        "reasoning_format": _only("what a model thinks is part of its text", "none", "auto"),
        "repeat_last_n": _no_effect("penalties look at the whole text"),
        "repeat_penalty": _is("repetition_penalty"),
        "return_progress": _only(_NOT_YET, False),
        "samplers": _no_effect("the filters have one order: top_k, top_p, min_p"),
        "speculative.n_max": _is("max_draft"),
        "speculative.n_min": _no_effect("the controller says how much is drafted"),
        "speculative.p_min": _no_effect("the controller says how much is drafted"),
        "top_n_sigma": _only(_FILTER, -1),
        "t_max_predict_ms": _only(_NOT_YET, 0, -1),
        "t_max_prompt_ms": _only(_NOT_YET, 0, -1),
        "typical_p": _only(_FILTER, 1),
        "verbose": _only("the log says what there is to say", False),
        "xtc_probability": _only(_FILTER, 0),
        "xtc_threshold": _no_effect(_FILTER),
    },
}
"""Fields of a request's JSON."""

_BY_NAME = {name: one for names in REQUEST.values() for name, one in names.items()}


def names() -> tuple[str, ...]:
    """All names of the tables."""
    return tuple(_BY_NAME)


def read(given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """A request's fields under our names, and what each of them was called. A field that is null is not given.

    Raises RequestError for a value that cannot be had here, and for two names of one field that differ.
    """
    fields: dict[str, object] = {}
    typed: dict[str, str] = {}
    for name, value in given.items():
        if value is None:
            continue
        one = _BY_NAME.get(name)
        if one is not None and not one.becomes:
            _check(name, value, one)
            continue
        ours = name if one is None else one.becomes[0]
        ours, _, part = ours.partition(".") if one is not None else (ours, "", "")
        if part:
            value = _with_part(fields.get(ours), part, value, name)
            fields.pop(ours, None)
        if ours in fields and fields[ours] != value:
            raise RequestError(f"{name} and {typed[ours]} differ: give one of them")
        fields[ours], typed[ours] = value, name
    return fields, typed


def _with_part(whole: object, part: str, value: object, name: str) -> dict[str, object]:
    """A field that is an object, with a part of it that has a name of its own."""
    whole = {} if whole is None else whole
    if not isinstance(whole, Mapping) or part in whole:
        raise RequestError(f"{name} is given twice: give it once")
    return {**whole, part: value}


def _check(name: str, value: object, one: Spelling) -> None:
    if one.values is None:
        _note(name, one.why)
    elif _word(value) not in one.values:
        allowed = f" (allowed: {', '.join(one.values)})" if one.values else ""
        raise RequestError(f"{name}={short_repr(value)} is not possible here: {one.why}{allowed}")


@cache
def _note(name: str, why: str) -> None:
    _log.info("field '%s' of a request has no effect: %s", name, why)
