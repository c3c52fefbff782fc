"""What the user gave of a request's parameters, for a model of this machine and for a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forerun.core.params import SamplingParams
from forerun.spellings.engine import note
from forerun.text.generation import FILTERS, SETTINGS

if TYPE_CHECKING:
    from forerun.llm import LLM


@dataclass(frozen=True, slots=True)
class Params:
    """What the user gave of a request's parameters; called with a model: its own, changed by them."""

    chosen: Mapping[str, Any]

    def __call__(self, llm: LLM) -> SamplingParams:
        """Complete the parameters for a model, with a note for each that has no effect there."""
        found = replace(llm.default_params(), **self.chosen)
        if found.is_greedy and "temperature" not in self.chosen:
            for name in (name for name in FILTERS if name in self.chosen):
                why = "this model is decoded greedily unless --temperature is given"
                note(f"--{name.replace('_', '-')}", self.chosen[name], why)
        return found

    def body(self) -> dict[str, object]:
        """Write the fields of a request to a server, which decides what is not given."""
        neutral = SamplingParams()
        kept = (*SETTINGS, "max_tokens")
        return {
            name: value
            for name, value in self.chosen.items()
            if value is not None and (name in kept or value != getattr(neutral, name))
        }
