"""A drafter under check: built over tiny random models, and wrapped so that each of its calls is looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.config import EngineConfig, Quant
from forerun.core.errors import ForerunError
from forerun.core.structured import StructuredOutputsParams
from forerun.core.types import Draft, Seq
from forerun.drafters.base.contract import Drafter, LoadedModel, Target
from forerun.drafters.base.find import method_of
from forerun.drafters.base.rules import broken_rule
from forerun.drafters.base.spec import DrafterSpec
from forerun.engine.engine import Engine
from forerun.model.model import Model
from forerun.model.random_model import random_model

VOCAB_SIZE, MAX_LEN, NUM_SEQS = 24, 256, 4


CYCLE = (None, None, (7, 1, 2, 3), None, (5,), (4,), None, (1, 2, 3))
"""The tokens that a state allows; None allows all."""


@dataclass(frozen=True, slots=True)
class ToyGrammar:
    """A grammar for checks: a cycle of states, each of which allows some tokens; all, a few, or one."""

    vocab_size: int
    state: int = 0

    @classmethod
    def start(cls, wanted: StructuredOutputsParams) -> ToyGrammar:
        """Return the first state; the expression is the size of the vocabulary."""
        return cls(int(wanted.source))

    def allowed(self) -> NDArray[np.bool_] | None:
        """Return a mask (V,) of the tokens that may come next; None: all."""
        tokens = CYCLE[self.state]
        return None if tokens is None else np.isin(np.arange(self.vocab_size), tokens)

    def allows(self, token: int) -> bool:
        """Tell whether one token may come next."""
        tokens = CYCLE[self.state]
        return tokens is None or token in tokens

    def advance(self, token: int) -> ToyGrammar | None:
        """Return the state after a token; None if it is not allowed."""
        if not self.allows(token):
            return None
        return replace(self, state=(self.state + 1) % len(CYCLE))

    def forced(self) -> list[int]:
        """Return the tokens that are the only ones allowed, up to a state that allows several."""
        forced: list[int] = []
        for tokens in CYCLE[self.state :]:
            if tokens is None or len(tokens) > 1:
                break
            forced += tokens
        return forced


class ContractError(ForerunError):
    """A drafter broke the contract, as the message describes."""


@dataclass(frozen=True)
class Candidate:
    """A drafter to check, which is built anew for each check."""

    build: Callable[[Target], Drafter]
    make_model: Callable[..., Model] = random_model

    @classmethod
    def of(cls, drafter: str, make_model: Callable[..., Model] = random_model) -> Candidate:
        """Read a drafter by name or path, with options. Raises ConfigError."""
        spec = DrafterSpec.of(drafter)
        return cls(lambda target: _with_examples(spec, target).build(target), make_model)

    def engine(self, *, max_num_seqs: int = NUM_SEQS, max_len: int = MAX_LEN) -> Engine:
        """Make an engine over a random model that drafts in full, with a drafter of its own."""
        model, relative = (
            self.make_model(3, sharpness=3.0, noise=noise, vocab_size=VOCAB_SIZE)
            for noise in (0.0, 0.15)
        )

        def load(model: str, *, quant: Quant = "none", head_bits: int | None = None) -> LoadedModel:
            return LoadedModel(relative, None)

        cache = model.new_cache(max_num_seqs, max_len)
        target = Target(model, None, max_num_seqs, max_len, cache, load)
        with naming("build"):
            drafter = self.build(target)
        config = EngineConfig(controller=False)
        checked = Checked(drafter)
        engine = Engine(model, cache, checked, config, grammars=ToyGrammar.start)
        engine.proposer.isolates_errors = False  # they must be seen
        return engine


def _with_examples(spec: DrafterSpec, target: Target) -> DrafterSpec:
    """The options that were not given are those of the method's `example`, if it has one."""
    if spec.parts:
        return replace(spec, parts=tuple(_with_examples(part, target) for part in spec.parts))
    if (make_example := method_of(spec.name).example) is None:
        return spec
    with naming("example"):
        example = make_example(target)
    values = {field.name: getattr(example, field.name) for field in dataclasses.fields(example)}
    return replace(spec, options={**values, **spec.options})


def _named(verb: str) -> Callable[..., Any]:
    """Make a method that calls the drafter's own, and says in an error which it was."""

    def call(self: Checked, *arguments: Any) -> Any:
        with naming(verb):
            return getattr(self.inner, verb)(*arguments)

    return call


class Checked(Drafter):
    """A drafter whose every call is checked: what it raises and what it returns becomes a ContractError."""

    def __init__(self, drafter: Drafter) -> None:
        self.inner, self.features = drafter, drafter.features
        self.proposed: list[Draft] = []

    begin, observe, end, memory = map(_named, ("begin", "observe", "end", "memory"))

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Check the drafts. Raises ContractError."""
        with naming("propose"):
            drafts = self.inner.propose(seqs, budgets)
        if broken := broken_rule(drafts, budgets, VOCAB_SIZE):
            raise ContractError(broken)
        self.proposed += drafts
        return drafts


@contextmanager
def naming(verb: str) -> Iterator[None]:
    """Say which of the drafter's functions raised."""
    try:
        yield
    except ForerunError:
        raise
    except Exception as error:
        raise ContractError(f"{verb} raised {type(error).__name__}: {error}") from error
