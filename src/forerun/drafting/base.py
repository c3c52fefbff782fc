"""The Drafter protocol: five verbs and one number. A new method is one new file in this folder.

A drafter module exports `Options` (a frozen dataclass; its attribute docstrings are the CLI help) and
`build(options: Options, target: Target) -> Drafter`; nothing else is required. For `forerun autotune`
it may export `GRIDS`, the values to try of each option in ascending order, or a search of its own:
`tune(target, options, search) -> Options`.
A drafter never sees the engine, the scheduler or the sampler;
of a sequence it reads `seq.id`, `seq.tokens`, `seq.num_prompt`, `seq.params`, `seq.seed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from forerun.core.errors import ConfigError
from forerun.core.types import EMPTY_DRAFT, NO_FEATURES, Draft, Features, Outcome, Seq
from forerun.model.cache.base import KVCache
from forerun.model.model import Model
from forerun.weights.rtn import Scheme

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SELF = "self"
"""The name under which `Target.load` loads the target's own file again."""


class Vocabulary(Protocol):
    """What a drafter may ask of a tokenizer: what a token id stands for."""

    vocab_size: int

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes a token stands for; None for an id the tokenizer does not know (padding)."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a mark, such as the end of a text, and not part of one."""
        ...


class LoadedModel(NamedTuple):
    """A model and what its token ids stand for."""

    model: Model
    vocabulary: Vocabulary | None


class LoadModel(Protocol):
    """Loads another model to where the target runs: same device, backend and weight cache."""

    def __call__(
        self, model: str, *, quant: Scheme = "none", head_bits: int | None = None
    ) -> LoadedModel:
        """`model` is a path, a known name, a hub name or `SELF`. Raises LoadError and ConfigError."""
        ...


def cannot_load(model: str, *, quant: Scheme = "none", head_bits: int | None = None) -> LoadedModel:
    """The `load` of a target that was not loaded from a file."""
    raise ConfigError(f"'{model}' cannot be loaded: Target(load=...) says how, and was not given")


@dataclass(frozen=True, slots=True)
class Target:
    """The narrow view of the target that a drafter is built with."""

    model: Model
    vocabulary: Vocabulary | None
    max_num_seqs: int
    max_len: int
    cache: KVCache | None = None
    """The target's own cache, for drafters that draft with the target: `seq.slot` is a sequence's
    slot, rows above its committed length are free to write until the target's next pass."""
    load: LoadModel = cannot_load
    """Loads a draft model."""
    path: Path | None = None
    """The target's file or folder; None if it was not loaded from one."""
    learn: bool = False
    """Keep what is learned of this target for the next process, and learn more of it while nothing else runs."""
    learned_in: Path | None = None
    """The folder where it is kept; None: in the cache."""


class DrafterBytes(NamedTuple):
    """What a drafter holds, by kind: weights, keys and values, and everything else."""

    weights: int = 0
    kv: int = 0
    tables: int = 0


def memory_of(drafter: Drafter, num_seqs: int, max_len: int) -> DrafterBytes:
    """`Drafter.nbytes` by kind, where the drafter has a method `memory` that tells them apart."""
    told = getattr(drafter, "memory", None)
    if told is None:
        return DrafterBytes(tables=drafter.nbytes(num_seqs, max_len))
    return DrafterBytes(*told(num_seqs, max_len))


def nodes_of(drafter: Drafter) -> int:
    """Nodes of a draft at most: as its property `max_nodes` says, or else its options."""
    told = getattr(drafter, "max_nodes", None)
    if told is not None:
        return int(told)
    options = getattr(drafter, "options", None)
    return int(getattr(options, "num_nodes", getattr(options, "num_draft", 0)))


def idle(drafter: Drafter) -> bool:
    """Between requests: one small step of its own, where it has a method `idle`; whether there is more."""
    step = getattr(drafter, "idle", None)
    return step is not None and bool(step())


class Drafter(Protocol):
    """Guesses tokens. Never wrong, only more or less useful: the verifier decides."""

    features: Features
    """What it wants to see of the target's passes."""
    draws: bool
    """Whether some of its drafts carry `probs`. What a seeded request says then depends on how much is drafted, so the
    controller leaves those requests alone."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """The prompt is in the target's cache, a first token in `seq.tokens`; again when a sequence comes back."""
        ...

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """One tree a sequence below its last token, at most `budgets[i]` nodes (0 is allowed); may be empty."""
        ...

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """What became of the drafts; `seq.tokens` already holds `outcome.emitted`.

        `drafts[i]` is what was verified: the proposal as the engine cut it. `outcomes[i].path` counts its nodes.
        """
        ...

    def end(self, seq: Seq) -> None:
        """The sequence finished or was preempted: forget it. Harmless for an unknown one."""
        ...

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        """Bytes it will hold at most for that many sequences of that length, weights included."""
        ...


class BaseDrafter:
    """A drafter that keeps nothing and wants to see nothing: override what differs, at least `propose_one`."""

    features = NO_FEATURES
    draws = False

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Nothing to prepare."""

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """One sequence after the other."""
        return [self.propose_one(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]

    def propose_one(self, seq: Seq, budget: int) -> Draft:
        """A draft of at most `budget` nodes."""
        return EMPTY_DRAFT

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Nothing to learn but the tokens, which are in `seq.tokens`."""

    def end(self, seq: Seq) -> None:
        """Nothing to forget."""

    def nbytes(self, num_seqs: int, max_len: int) -> int:
        """Nothing is held."""
        return 0


Options = TypeVar("Options", bound="DataclassInstance")


class Search(Protocol):
    """What a drafter's `tune` is given by autotune; it asks in the same order each time."""

    def score(self, options: DataclassInstance) -> float:
        """The expected speed-up over plain decoding; runs the model on prompts, or remembers that it did."""
        ...

    def climb(
        self, options: Options, grids: Mapping[str, Sequence[float]], *, grow: bool = False
    ) -> Options:
        """Change one option at a time along its grid as long as the score rises; what was given stays.

        With `grow` the options begin at their smallest values.
        """
        ...
