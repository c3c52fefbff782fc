"""A receipt of sameness: what a model answers on one machine, to be held against another, bit for bit.

It has hashes of the model's files and of each prompt's tokens, the parameters, the answers' tokens, and for each layer
a hash of the state of the prompt's last row: so what differs is named by its prompt, position and layer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.core.batch import Batch, Segment
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.hub.wheel import sha256 as sha256_of
from forerun.system.device import report
from forerun.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from forerun.llm import LLM, Prompt

_PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_tokens")
_LETTERS = 16
"""Of a hash of a row."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer is another one."""

    prompt: str
    position: int | None
    """Of the first token that differs; None if all are the same."""
    layer: str | None
    """The first behind which the state of the prompt's last row differs; None if none does."""

    def __str__(self) -> str:
        """Name what differs."""
        tokens = (
            "the tokens are the same" if self.position is None else f"token {self.position} differs"
        )
        states = (
            "no state of the prompt does"
            if self.layer is None
            else f"its prompt's state first {self.layer}"
        )
        return f"prompt {self.prompt}: {tokens}, {states}"


def made(
    llm: LLM, params: SamplingParams, ids: Sequence[str], prompts: Sequence[Prompt], answers: Sequence[Sequence[int]]
) -> dict[str, Any]:  # fmt: skip
    """Return the receipt of answers to prompts."""
    entries = [
        {"id": name, **_of_prompt(llm, llm.encode(prompt)), "tokens": [*answer]}
        for name, prompt, answer in zip(ids, prompts, answers, strict=True)
    ]
    machine, opened = report(), open_checkpoint(llm.path).files
    files = {Path(each.path).name: sha256_of(Path(each.path)) for each in opened if each.state}
    return {
        "receipt": 1,
        "made_on": {
            "device": llm.device,
            "isa": getattr(llm.model, "isa", None),
            "cpu": machine["cpu"],
            "forerun": machine["forerun"],
        },
        "model": files,
        "kv": llm.config.kv,
        "parameters": {name: getattr(params, name) for name in _PARAMETERS},
        "prompts": entries,
    }


def _of_prompt(llm: LLM, tokens: list[int]) -> dict[str, Any]:
    """Return the hash of a prompt's tokens, and those of its last row's state behind each layer and at the end."""
    model, number = llm.model, len(tokens)
    layers = tuple(range(model.config.num_layers))
    rows = Batch((Segment(0, 0, tuple(tokens), certain=number),))
    hidden = model.forward(rows, model.new_cache(1, number, llm.config.kv), layers)
    states = [
        sha256(each[-1].tobytes()).hexdigest()[:_LETTERS] for each in (*hidden.aux, hidden.last)
    ]
    return {"prompt": sha256(np.array(tokens, np.int64).tobytes()).hexdigest(), "states": states}


def read(path: Path) -> dict[str, Any]:
    """Read a receipt. Raises ConfigError for another file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} is not a receipt ({error}): forerun verify --receipt writes one"
        ) from error
    if not isinstance(found, dict) or found.get("receipt") != 1:
        raise ConfigError(f"{path} is not a receipt: forerun verify --receipt writes one")
    return found


def differences(ours: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Difference]:
    """Compare what is computed here with a receipt. Raises ConfigError where something else was asked for."""
    for field in ("model", "kv", "parameters"):
        if ours[field] != expected.get(field):
            raise ConfigError(
                f"{field} must be the receipt's, {expected.get(field)}, not {ours[field]}"
            )
    found, known = [], {each["id"]: each for each in expected["prompts"]}
    for own in ours["prompts"]:
        other = known.get(own["id"])
        if other is None or other["prompt"] != own["prompt"]:
            raise ConfigError(
                f"the receipt has other tokens for the prompt {own['id']}, or none: give the same --prompts"
            )
        position, layer = (_first(own[name], other[name]) for name in ("tokens", "states"))
        if position is not None or layer is not None:
            last = len(own["states"]) - 1
            where = (
                None
                if layer is None
                else "at the end"
                if layer == last
                else f"behind layer {layer}"
            )
            found.append(Difference(own["id"], position, where))
    return found


def _first(ours: Sequence[object], expected: Sequence[object]) -> int | None:
    """Return where two sequences first differ."""
    differing = (i for i, (a, b) in enumerate(zip(ours, expected)) if a != b)
    shorter = min(len(ours), len(expected))
    return next(differing, None if len(ours) == len(expected) else shorter)
