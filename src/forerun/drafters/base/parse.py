"""Parse what names a drafter: the text behind `-d`, its parts, and the drafter that options alone mean."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from forerun.core import registry
from forerun.core.config import AUTO
from forerun.core.errors import ConfigError, unknown
from forerun.core.paths import expanded
from forerun.drafters.base.find import find, is_file
from forerun.model.kernels import native
from forerun.system.opened import read_json
from forerun.weights.gguf import GgufCheckpoint

AUTO_CHOICE, AUTO_WITHOUT_KERNELS = "recycling", "lookahead"
"""What `auto` is where nothing ships for the target; tables are native."""

_NEXT_DRAFTER = re.compile(r",(?=\s*(?:[A-Za-z][\w+-]*|[^,:=]+\.py)\s*(?:[,:+]|$))")
_NETWORK = re.compile(r"eagle3?|medusa|mlp[_-]?speculator|(?<![a-z])mtp(?![a-z])|dflash|dspark")
_ANOTHER = {"dspark": "dflash"}
"""Networks that the drafter of another kind reads."""
_ASSISTANT = re.compile(r"gemma[-_]?4.*assistant")
_BY_ARCHITECTURE = {
    "gemma4-assistant": "gemma4_assistant",
    "eagle3": "eagle3",
    "dflash": "dflash",
}
"""Which drafter reads a GGUF file of an architecture that is not a model's."""
_IMPLYING = {"model": "draft_model", **{"ngram_max": "prompt_lookup", "ngram_min": "prompt_lookup"}}
"""Options that imply a drafter where none is named, the strongest first."""


def split_list(drafters: str) -> list[str]:
    """Split a list: a comma ends a drafter unless an option, `key=value` or a value alone, follows."""
    return [part for part in map(str.strip, _NEXT_DRAFTER.split(drafters)) if part]


def split_parts(drafter: str) -> list[str]:
    """Split `a++b` into its drafters; ++ separates only before a drafter's name, since paths may contain it.

    Raises ConfigError for a single + there.
    """
    if "+" not in drafter:
        return [drafter]
    if is_file(path := drafter.partition(":")[0]) and expanded(path).is_file():
        return [drafter]
    names = "|".join(registry.names("drafters")).replace("_", "[-_]")
    parts = re.split(rf"(\+\+?)(?=(?:{names}|[^:+,]+\.py)(?:[:+]|$))", drafter)
    if "+" in parts[1::2]:
        raise ConfigError(f"'{drafter}': ask both, for one tree, with {'++'.join(parts[::2])}")
    return parts[::2]


def named(drafter: str) -> str:
    """Find a drafter's name as the registry has it, or a file that holds one. Raises ConfigError."""
    if is_file(drafter):
        find(drafter)
        return drafter
    known = registry.names("drafters")
    if (name := drafter.replace("-", "_").lower()) not in known:
        raise ConfigError(unknown("drafter", drafter, [AUTO, *known]))
    return name


def implied(given: Mapping[str, object]) -> str:
    """Choose the drafter that options alone mean: `model=...` is a draft model, or the network in that folder."""
    choice = AUTO_CHOICE if native.available() else AUTO_WITHOUT_KERNELS
    name = next((name for key, name in _IMPLYING.items() if key in given), choice)
    return _reader_of(str(given["model"])) if name == "draft_model" else name


def option_names(drafter: str) -> list[str]:
    """List the names of a drafter's options, as `-d NAME:option=value` takes them."""
    return [one.name for one in dataclasses.fields(find(drafter).Options)]


def check_option(key: str, value: object, drafter: str, names: Sequence[str]) -> None:
    """Raise ConfigError for an option that is none of `names`, naming our drafters that have it."""
    if key in names:
        return
    ours = (
        each
        for each in registry.names("drafters")
        if registry.origin("drafters", each) == "forerun"
    )
    if have := [name for name in ours if key in option_names(name)]:
        raise ConfigError(
            f"drafter '{drafter}' has no option {key}={value!r} "
            f"(it has: {', '.join(names) or 'none'}); these have it: {', '.join(have)}",
            option=key,
        )
    message = unknown("option", key, names)
    raise ConfigError(message.replace(" (allowed: ", f" (allowed for '{drafter}': "))


def _reader_of(model: str) -> str:
    """Tell which drafter reads a hub name, folder or file: a network's, or `draft_model`.

    Raises ConfigError for one that none reads, LoadError for a GGUF file that is damaged.
    """
    path = expanded(model)
    words = path.name.lower()
    if (path / "config.json").is_file():
        settings = read_json(path / "config.json")
        kinds = ("model_type", "speculators_model_type", "architectures")
        words = " ".join(str(settings.get(kind)) for kind in kinds).lower()
    elif path.is_file() and words.endswith(".gguf"):
        return _BY_ARCHITECTURE.get(GgufCheckpoint(path).architecture, "draft_model")
    elif path.exists() or words.endswith(".gguf"):
        return "draft_model"
    if _ASSISTANT.search(words):
        return "gemma4_assistant"
    if not (match := _NETWORK.search(words)):
        return "draft_model"
    names = registry.names("drafters")
    name = re.sub("[-_]?speculator", "_speculator", _ANOTHER.get(match[0], match[0]))
    if name in names:
        return name
    raise ConfigError(
        f"model={model!r} drafts by '{match[0]}', which is not supported yet (there are: {', '.join(names)})"
    )
