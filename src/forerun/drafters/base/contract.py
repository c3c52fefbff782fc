"""What a drafter is: the base class with its defaults, the target it is built for, and what a method declares.

The module of a method, one file or folder of `forerun.drafters`, exports `Options` (a frozen dataclass; its attribute
docstrings are the help of `-d`) and `build(options: Options, target: Target) -> Drafter`; `METHOD = Method(...)` is
optional. A drafter never sees the engine, the scheduler or the sampler; of a sequence it reads `seq.id`, `seq.tokens`,
`seq.num_prompt`, `seq.params`, `seq.noise`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.types import EMPTY_DRAFT, NO_FEATURES, Draft, Features, Outcome, Seq
from forerun.drafters.base.vocabulary import Vocabulary
from forerun.model.cache.base import KVCache
from forerun.model.model import Model
from forerun.weights.identity import UNKNOWN, Identity
from forerun.weights.rtn import Scheme

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from forerun._native import TextNGramModel

SELF = "self"
"""The name under which `Target.load` loads the target's own file again."""


class LoadedModel(NamedTuple):
    """A model and what its token ids stand for."""

    model: Model
    vocabulary: Vocabulary | None


class LoadModel(Protocol):
    """Load another model to where the target runs: same device and weight cache."""

    def __call__(
        self, model: str, *, quant: Scheme = "none", head_bits: int | None = None
    ) -> LoadedModel:
        """Load `model`: a path, a known name, a hub name or `SELF`. Raises LoadError and ConfigError."""
        ...


def cannot_load(model: str, *, quant: Scheme = "none", head_bits: int | None = None) -> LoadedModel:
    """Replace `Target.load` where the target was not loaded from a file. Raises ConfigError."""
    raise ConfigError(f"'{model}' cannot be loaded: Target(load=...) says how, and was not given")


class TreeSize(NamedTuple):
    """Where the growth of a tree ends."""

    num_draft: int
    """Nodes at most."""
    min_chance: float
    """Probability that a node is reached, at least."""

    @classmethod
    def of(cls, config: EngineConfig) -> TreeSize:
        """Return the size where no option says it: a memory budget has no room for the rows of large trees."""
        is_cut = config.controller and config.budget_nbytes is None
        return LARGEST_SIZE if is_cut else FIXED_SIZE

    @classmethod
    def given(cls, num_draft: int | None, min_chance: float | None) -> TreeSize:
        """Return what options say, and `FIXED_SIZE` where they do not."""
        nodes, chance = FIXED_SIZE
        return cls(
            nodes if num_draft is None else num_draft,
            chance if min_chance is None else min_chance,
        )


FIXED_SIZE = TreeSize(7, 0.1)
"""Of trees that are verified whole: on two cores 16 rows cost as much as three passes of one."""
LARGEST_SIZE = TreeSize(15, 0.02)
"""Of trees that the controller cuts by the price of rows: 16 rows cost one pass on many cores (`dev/LOG.md`)."""


@dataclass(frozen=True, slots=True)
class Target:
    """The narrow view of the target that a drafter is built with."""

    model: Model
    vocabulary: Vocabulary | None
    max_num_seqs: int
    max_len: int
    cache: KVCache | None = None
    """The target's cache, for drafters that read it: `seq.slot` is a sequence's slot, and rows above its committed
    length may be written until the target's next pass."""
    load: LoadModel = cannot_load
    """Loads a draft model."""
    path: Path | None = None
    """The target's file or folder; None if it was not loaded from one."""
    names: frozenset[str] = frozenset()
    """The tensors of its file."""
    identity: Identity = UNKNOWN
    """Which published model it is, by what its file says."""
    encode: Callable[[str], Sequence[int]] | None = None
    """Tokenizes texts, of which a drafter may make what it lacks for this target in the cache; None: it may not."""
    tree_size: TreeSize = FIXED_SIZE
    """How large trees may get where their options do not say."""


class DrafterBytes(NamedTuple):
    """Bytes of a drafter by kind: weights, keys and values, and everything else."""

    weights: int = 0
    kv: int = 0
    tables: int = 0

    @property
    def total(self) -> int:
        """Bytes of weights, keys and values, and tables together."""
        return sum(self)


@dataclass(slots=True)
class DraftModelUse:
    """Whether the models of a drafter take part in its next draft, and what they did in the last one."""

    wanted: Sequence[bool] = ()
    """By sequence; none: in all."""
    cost: float = 0.0
    """What a step of them costs in tokens: they step where more is expected of it."""
    num_steps: Sequence[int] = ()
    """Steps that they took, by sequence."""
    num_read: int = 0
    """Tokens of the texts that they read before it."""
    load_s: float = 0.0
    """Seconds in which they were loaded before it, in the background."""
    step_cost: float = 0.25
    """What a step of them costs by its bytes, in plain passes: the price until it is measured."""


class Drafter:
    """Guess tokens for the verifier, which decides: a wrong guess costs time, never a token.

    The defaults are those of a drafter that guesses nothing, keeps nothing and wants to see nothing. Override
    `propose_one`, or `propose` where one call for all sequences is faster, and whatever else differs.
    """

    features: Features = NO_FEATURES
    """What `Outcome` has of the target's passes besides the emitted tokens."""
    max_nodes: int = 0
    """Nodes of a draft at most; memory for so many rows of a pass is planned."""
    kv_block_nbytes: int = 0
    """Bytes of a block of the drafter's own keys and values, where they come out of the target's memory."""
    parts: Sequence[Drafter] = ()
    """The drafters that it combines; none: it is a single one."""
    gives_ngrams: bool = False
    """Has an `ngram_model`, which a network can guess with."""
    asking: DraftModelUse | None = None
    """Set by a drafter whose models the controller may leave out, as cheaper ones guess too."""

    def begin(self, seq: Seq, outcome: Outcome) -> None:
        """Start a sequence whose prompt is in the target's cache and whose first token ends `seq.tokens`.

        Comes again after a preemption. `outcome` has a row for the last prompt token.
        """

    def propose(self, seqs: Sequence[Seq], budgets: Sequence[int]) -> list[Draft]:
        """Guess one tree a sequence below its last token, of at most `budgets[i]` nodes (0 is allowed)."""
        return [self.propose_one(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]

    def propose_one(self, seq: Seq, budget: int) -> Draft:
        """Guess a tree of at most `budget` nodes."""
        return EMPTY_DRAFT

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Learn the outcome of the drafts; `seq.tokens` already holds `outcome.emitted`.

        `drafts[i]` is what was verified: the proposal as the engine cut it. `outcomes[i].path` counts its nodes.
        """

    def end(self, seq: Seq) -> None:
        """Forget a sequence that finished or was preempted. Harmless for an unknown one."""

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the bytes at most for `num_seqs` sequences of `max_len` tokens."""
        return DrafterBytes()

    def num_unread(self, seq: Seq) -> int:
        """Count the tokens that its models have to read before they take part in a draft."""
        return 0

    def ngram_model(self, seqs: Sequence[Seq]) -> TextNGramModel:
        """Return the n-gram model of the texts, for a network to draft with; called if `gives_ngrams`."""
        raise NotImplementedError


Options = TypeVar("Options", bound="DataclassInstance")


def as_given(options: Options) -> Options:
    """Return the options unchanged: `Method.unshared` of a method that reads one request's tokens anyway."""
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What a method declares besides its options; its module exports one as `METHOD` if anything differs from here."""

    smaller: Callable[[Any], Any] = lambda options: None
    """Returns options that need less memory than the given ones, None if there are none; for a memory budget."""
    unshared: Callable[[Any], Any] | None = None
    """Returns options that draft nothing from other requests' texts; None: none do."""
    example: Callable[[Target], Any] | None = None
    """Options for `forerun check-drafter`, where `Options()` cannot be built or holds more than a check can fill."""
    grids: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Values of each option for `forerun tune -d` to try, ascending."""
    tune_when_named: bool = False
    """`forerun tune` leaves it out unless `-d` names it."""
    check: Callable[[Any, Target], None] = lambda options, target: None
    """Raises LoadError or ConfigError, from headers alone, if the options name a file that does not fit a target."""
    as_partner: Mapping[str, object] = field(default_factory=dict)
    """Defaults of its options where it is one of several drafters, as far as they differ."""
    bundled_for: Callable[[Target], bool] = lambda target: False
    """Tells whether forerun has what it needs for this target, so that `auto` may use it."""
