"""Trimmed drafts as folders: a draft model, and the tokens that its head is cut to, made by `forerun trim-vocab`.

`model.safetensors` holds them the way EAGLE-3 checkpoints do: `d2t` (n,) int64, what to add to a row's number to get
its token, and `t2d` (V,) bool, which tokens have a row. `config.json` names the draft and the target. The weights stay
where they are: the cut head is made of the draft's own rows when it is loaded, on their own grid.

n tokens on the list, V vocabulary.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from forerun.core.arrays import Ids
from forerun.core.errors import ConfigError, LoadError
from forerun.core.paths import expanded
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.folder import CONFIG, TENSORS, open_network, write
from forerun.drafters.base.networks.trained import head_tokens
from forerun.drafters.base.vocabulary import fingerprint
from forerun.hub.names import name_of

KIND = "trimmed_draft"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrimmedConfig:
    """The configuration of a trimmed draft's folder."""

    draft: str
    """The model whose head is cut: a full path, a known name or a Hugging Face name."""
    target: str
    """The model whose tokens were counted."""
    vocabulary: str
    """The fingerprint of its tokenizer."""
    vocab_size: int
    draft_vocab_size: int
    num_tokens: int
    """Tokens that were counted."""
    model_type: str = KIND


def is_one(model: str) -> bool:
    """Say whether a draft that was named is such a folder. Raises LoadError for one that cannot be read."""
    path = expanded(model) / CONFIG
    return path.is_file() and _read(path).get("model_type") == KIND


def described(model: str) -> tuple[str, int | None]:
    """Return a draft's name and how many tokens it may guess, None for all. Raises LoadError."""
    if not is_one(model):
        return model, None
    config = _config(expanded(model))
    return config.draft, config.draft_vocab_size


def save(folder: Path, config: TrimmedConfig, tokens: Ids) -> None:
    """Write both files; the tokens ascend. Raises OSError."""
    mask = np.zeros(config.vocab_size, np.bool_)
    mask[tokens] = True
    tensors = {"d2t": tokens - np.arange(len(tokens)), "t2d": mask}
    write(folder, asdict(config), tensors)


def load(model: str, target: Target) -> tuple[str, Ids]:
    """Return a draft's name and the tokens (n,) it may guess in every text, ascending.

    Raises LoadError for a damaged folder, ConfigError for a target of another tokenizer.
    """
    folder = expanded(model)
    config = _config(folder)
    vocabulary = target.vocabulary
    if vocabulary is not None and (ours := fingerprint(vocabulary)) != config.vocabulary:
        raise ConfigError(
            f"{folder} was trimmed for {config.target} ({config.vocabulary}), this model has another "
            f"vocabulary ({ours}): trim the draft for it with forerun trim-vocab"
        )
    if target.path is not None and (name := name_of(target.path)) != config.target:
        _log.warning("%s was trimmed for the words of %s, not of %s", folder, config.target, name)
    if config.vocab_size > target.model.config.vocab_size:
        raise LoadError(
            f"{folder} has {config.vocab_size} tokens, more than the model: choose a list made for it"
        )
    file = open_network(str(folder))
    try:
        names = {name: name for name in file.names()}
        tokens = head_tokens(file, names, config.vocab_size)
    except LoadError as error:
        raise LoadError(f"{folder / TENSORS} cannot be read: {error}") from error
    if tokens is None:
        raise LoadError(f"{folder / TENSORS} cannot be read: it has no d2t")
    return config.draft, tokens


def _config(folder: Path) -> TrimmedConfig:
    values = _read(folder / CONFIG)
    try:
        config = TrimmedConfig(**values)
        for field in fields(config):
            if type(getattr(config, field.name)).__name__ != field.type:
                raise TypeError(f"its {field.name} is {getattr(config, field.name)!r}")
    except TypeError as error:
        raise LoadError(f"{folder / CONFIG} is not a trimmed draft: {error}") from error
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise LoadError(f"{path} cannot be read: it is not a JSON object")
    return values
