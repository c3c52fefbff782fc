"""What was given for a drafter, in any engine's words: which drafter is meant, and which of its options.

The words stand in `core/spellings.py`. Errors quote what was typed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from forerun.core import registry, spellings
from forerun.core.errors import ConfigError, unknown
from forerun.drafting.find import find, is_file

AUTO = "auto"
AUTO_CHOICE = "recycling"

_HEADS = re.compile(r"eagle3?|medusa|mlp[_-]?speculator|(?<![a-z])mtp(?![a-z])|dflash|dspark")
_IMPLYING = {"model": "draft_model", "exit": "early_exit", "ngram_max": "prompt_lookup"}
"""Options that say which drafter is meant where none is named, the strongest first."""


class Given(NamedTuple):
    """An option's value, and what the option was called."""

    typed: str
    value: object


def method(named: str, *given: dict[str, object]) -> str:
    """The drafter that was named, by the key of any engine; these keys are taken out. Raises ConfigError for two."""
    methods = {named}
    for keys in given:
        for key in [key for key in keys if spellings.plain(key) in spellings.METHOD_KEYS]:
            methods.add(str(keys.pop(key)))
    methods.discard(AUTO)
    if len(methods) > 1:
        one, other, *_ = sorted(methods)
        raise ConfigError(f"'{one}' and '{other}': give one drafter, or {one}+{other} for both")
    return methods.pop() if methods else AUTO


def drafter(method: str, given: Mapping[str, object]) -> str:
    """Our name of a method; without one, of the drafter that the options imply. Raises ConfigError."""
    if is_file(method):
        find(method)
        return method
    if method == AUTO:
        model = str(given.get("model", ""))
        return spellings.method(model) or _implied(given)  # as in vLLM, model may be "[ngram]"
    known = registry.names("drafters")
    for name in (method.replace("-", "_").lower(), spellings.method(method)):
        if name in known:
            return str(name)
    if spellings.is_not_yet(method):
        raise ConfigError(f"'{method}' is not supported yet (there are: {', '.join(known)})")
    raise ConfigError(unknown("drafter", method, [AUTO, *known], spellings.METHODS))


def read(given: Mapping[str, object], drafter: str, method: str = "") -> dict[str, Given]:
    """A drafter's options. Raises ConfigError for what it does not have, or leaves it out if no method is named."""
    names = option_names(drafter) if given else []
    options: dict[str, Given] = {}
    for key, value in given.items():
        spelling = spellings.drafting(key)
        if spelling is not None and spelling.is_off(value):
            continue
        if method:
            check(key, value, method, [drafter])
        if option := meant(key, names):
            _add(options, option, Given(key, _value(key, value)))
        elif spelling is not None and not spelling.becomes:
            spelling.note(key, value)
    if drafter == "prompt_lookup" and "ngram_min" in options:
        options.setdefault("ngram_max", options["ngram_min"])  # as in vLLM
    return options


def check(key: str, value: object, method: str, drafters: Sequence[str]) -> None:
    """Raise ConfigError for an option that none of the drafters has, and say which drafter has it."""
    names = [name for each in drafters for name in option_names(each)]
    if (spelling := spellings.drafting(key)) is not None and spelling.is_off(value):
        return
    if meant(key, names) is not None or (key == "model" and spellings.method(str(value))):
        return
    ours = [
        name
        for name in registry.names("drafters")
        if registry.origin("drafters", name) == "forerun"
    ]
    if have := [name for name in ours if meant(key, option_names(name))]:
        raise ConfigError(
            f"drafter '{method}' has no option {spellings.said(key, value)} "
            f"(it has: {', '.join(names) or 'none'}); these have it: {', '.join(have)}"
        )
    theirs = [word for word in spellings.known_names() if meant(word, names)]
    message = unknown("option", key, names, theirs)
    raise ConfigError(message.replace(" (allowed: ", f" (allowed for '{method}': "))


def meant(key: str, names: Collection[str]) -> str | None:
    """Which of these options a name means; empty if it has no effect here, None if they lack it."""
    word = spellings.plain(key)
    if word in names:
        return word
    if (spelling := spellings.drafting(key)) is None:
        return None
    return next(
        (name for name in spelling.becomes if name in names), None if spelling.becomes else ""
    )


def option_names(drafter: str) -> list[str]:
    """What a drafter's options are called."""
    return [one.name for one in dataclasses.fields(find(drafter).Options)]


def _add(options: dict[str, Given], option: str, given: Given) -> None:
    before = options.setdefault(option, given)
    if before.value != given.value:
        raise ConfigError(f"give {before.typed} or {given.typed}, not both")


def _implied(given: Mapping[str, object]) -> str:
    meanings = {_IMPLYING.get(key, "") for key in given}
    meanings |= {one.implies for key in given if (one := spellings.drafting(key)) is not None}
    name = next((name for name in _IMPLYING.values() if name in meanings), AUTO_CHOICE)
    for key, value in given.items() if name == "draft_model" else ():
        if meant(key, ["model"]):
            name = _kind(key, str(value))
    return name


def _kind(key: str, model: str) -> str:
    """Which drafter reads a hub name or folder: `draft_model`, or that of a network. Raises ConfigError for none."""
    path = Path(model).expanduser()
    words = path.name.lower()
    if (path / "config.json").is_file():
        settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
        words = f"{settings.get('model_type')} {settings.get('architectures')}".lower()
    elif path.exists() or words.endswith(".gguf"):
        return "draft_model"
    if not (found := _HEADS.search(words)):
        return "draft_model"
    names = registry.names("drafters")
    if (name := re.sub("[-_]?speculator", "_speculator", found[0])) in names:
        return name
    raise ConfigError(
        f"{spellings.said(key, model)} drafts by '{found[0]}', which is not supported yet "
        f"(there are: {', '.join(names)})"
    )


def _value(key: str, value: object) -> object:
    """The value; of lengths by batch size, as vLLM has them, the longest."""
    if spellings.plain(key) != "num_speculative_tokens_per_batch_size":
        return value
    try:
        longest = max(int(num) for _, _, num in value)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ConfigError(f"{key} must be [[from, to, tokens], ...], got {value!r}") from None
    spellings.note(key, value, f"up to {longest} tokens are drafted, the controller decides")
    return longest
