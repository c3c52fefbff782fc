"""A smaller model guesses for a larger one: classic speculative decoding, as a tree.

The draft has a cache of its own, whose blocks come out of the target's memory where that is limited. Before it guesses
it prefills the tokens of the sequence that its cache lacks: a prompt, the target's own token, or all tokens since the
sequence was preempted. Its tree grows best first over scratch rows; the rows of accepted nodes stay, so nothing is
computed twice.

Sources: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318); trees: SpecInfer
(arXiv 2305.09781).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from forerun.core.arrays import Ids
from forerun.core.config import Precision
from forerun.core.errors import ConfigError
from forerun.drafters.base import trimmed as trimmed_folder
from forerun.drafters.base.contract import SELF, Method, Target, as_given
from forerun.drafters.base.draft_head import list_of
from forerun.drafters.base.networks.options import NetworkOptions, in_int4
from forerun.drafters.base.vocabulary import Vocabulary, vocabulary_difference
from forerun.drafters.draft_model.network import DraftModel
from forerun.hub.names import here
from forerun.model.model import Model
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.rtn import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Which draft, and how much it guesses."""

    model: str
    """The draft: a path, a known name or a Hugging Face name; self is the target's own file."""
    num_draft: int = 5
    """Nodes of a tree at most."""
    num_steps: int = 5
    """Passes of the draft at most, each of which expands a node."""
    quant: Scheme = "int4"
    """Round the draft's weights to int8 or int4; none takes them as stored."""
    head_bits: Literal[4, 8] | None = 4
    """Round the draft's output head to so many bits; none takes it as stored."""
    kv: Precision = "int8"
    """How its cache stores keys and values."""
    draft_vocab: str = "counted"
    """Tokens that it may guess, the text's own besides: a number, full, auto: 32768 of a large vocabulary, counted: the
    16384 that replies have most often, or a folder of `forerun trim-vocab`."""
    min_doubt: float = 0.05
    """Together with others: it steps where their guess is needed and wrong with at least this probability."""


def build(options: Options, target: Target) -> DraftModel:
    """Load the draft. Raises LoadError, and ConfigError if its vocabulary is not the target's."""
    named, tokens = options, None
    if trimmed_folder.is_one(options.model):
        draft, tokens = trimmed_folder.load(options.model, target)
        named = replace(options, model=draft)
    again = partial(load, named, target)
    return drafter_of(again(), options, target, tokens, again)


def drafter_of(
    model: Model,
    options: Options,
    target: Target,
    listed: Ids | None = None,
    load: Callable[[], Model] | None = None,
) -> DraftModel:
    """Draft with a loaded model and, if its head is trimmed, the `listed` tokens, ascending.

    With a way to `load` it again it need not always be in memory.
    """
    vocab_size = min(model.config.vocab_size, target.model.config.vocab_size)
    listed = _listed(options, target, vocab_size, listed)
    return DraftModel(options, model, target, options.kv, listed, load)


def load(options: Options, target: Target) -> Model:
    """Load the draft with its full head. Raises LoadError, and ConfigError if its vocabulary is not the target's."""
    model, vocabulary = target.load(options.model, quant=options.quant, head_bits=options.head_bits)
    if target.vocabulary and vocabulary:
        _compare(options.model, target.vocabulary, vocabulary)
    return model


def check(options: Options, target: Target) -> None:
    """Compare the vocabularies. Raises LoadError, and ConfigError if they differ."""
    path = here(options.model)
    if path is not None and target.vocabulary and not trimmed_folder.is_one(options.model):
        _compare(options.model, target.vocabulary, open_checkpoint(path).tokenizer())


def _compare(model: str, known: Vocabulary, vocabulary: Vocabulary) -> None:
    if difference := vocabulary_difference(known, vocabulary):
        raise ConfigError(
            f"'{model}' cannot draft for this model: {difference}; choose a draft of the same family"
        )


def example(target: Target) -> Options:
    """Name the target itself: `forerun check-drafter` has a relative of its tiny model for every name."""
    return Options(model=SELF)


METHOD = Method(
    as_partner={"num_draft": 7, "num_steps": 7},
    unshared=as_given,
    smaller=in_int4,
    check=check,
    example=example,
    grids={"num_draft": (1, 2, 3, 4, 5, 6, 8, 10, 12), "num_steps": (1, 2, 3, 4, 5, 6, 8)},
)


def _listed(options: Options, target: Target, vocab_size: int, trimmed: Ids | None) -> Ids | None:
    """Return the tokens that are scored in every text, None for all. Raises ConfigError."""
    if trimmed is None or options.draft_vocab == "full":
        return list_of(options.draft_vocab, target, vocab_size)
    if options.draft_vocab not in ("auto", "counted"):
        raise ConfigError(
            f"draft_vocab={options.draft_vocab}: '{options.model}' has a list of its own; leave it out, or give full"
        )
    return trimmed
