"""The target guesses for itself with part of its layers: self-speculation, without training or a second model.

A guess is a pass of the target that runs only the sublayers of a plan, then the final norm and the
head: the first `exit` layers, or all but a set of attentions and MLPs. It reads the target's own keys
and values, so there is no second prefill and no second cache, and writes its rows where the target's
pass will write the same tokens next: whatever it leaves there is overwritten or forgotten.

The cost of a guess is the fraction of the weights it reads, the head included, which small models have
large; the guess is only as good as the model is at answering early, which most were never trained for.

Sources: Draft & Verify, Zhang et al. (arXiv 2309.08168); LayerSkip, Elhoushi et al. (arXiv 2404.16710).

M rows whose logits are needed, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from forerun.core.errors import ConfigError
from forerun.core.types import Seq
from forerun.drafting.base import Method, Search, Target, as_given
from forerun.drafting.draft_builder import (
    BuilderOptions,
    DraftBuilder,
    ModelDrafter,
    Scores,
    new_rows,
)
from forerun.model.model import LayerPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BuilderOptions):
    """Which part of the model guesses, and how much."""

    num_draft: int = 2
    """Tokens of a chain, one pass of the part each."""
    exit: int | None = None
    """Layers a guess runs, from the first; none means half of them, or all if some are skipped."""
    skip_attn: tuple[int, ...] = ()
    """Layers whose attention a guess leaves out, counted from 0, such as 12,14,15."""
    skip_mlp: tuple[int, ...] = ()
    """Layers whose MLP a guess leaves out, counted from 0."""


def build(options: Options, target: Target) -> EarlyExit:
    """Build a drafter within the target. Raises ConfigError for layers that it does not have."""
    return EarlyExit(options, target)


def tune(target: Target, options: Options, search: Search) -> Options:
    """Search which layers, then how many tokens and from which confidence on; what was given stays."""
    score, num_layers = search.score, target.model.config.num_layers
    best, default = options, Options()
    if (options.exit, options.skip_attn, options.skip_mlp) == (None, (), ()):
        depths = sorted({max(1, num_layers * i // 8) for i in range(1, 8)})
        choices = [replace(options, exit=depth) for depth in depths]
        best = max([*choices, *_skip_sets(options, num_layers, score)], key=score)
    if best.widths == default.widths:
        best = max((replace(best, num_draft=n) for n in (1, 2, 3, 4, 6, 8)), key=score)
    if best.min_confidence == default.min_confidence:
        best = max((replace(best, min_confidence=c / 5) for c in range(5)), key=score)
    return best


METHOD = Method(
    unshared=as_given,
    tune=tune,
    tune_when_named=True,  # it tries every sublayer, and few models gain
)


class EarlyExit(ModelDrafter):
    """Runs some of the target's sublayers over scratch rows of the target's cache."""

    def __init__(self, options: Options, target: Target) -> None:
        if target.cache is None:
            raise ConfigError(
                "early_exit drafts in the target's cache: build it with Target(cache=...) and give "
                "the engine the same cache"
            )
        super().__init__(options)
        self.model = target.model
        self.cache = target.cache
        self.plan = _plan(options, target.model.config.num_layers)
        self._max_len = min(target.max_len, target.model.config.max_position)

    def _start(self, seq: Seq, budget: int) -> DraftBuilder | None:
        room = min(budget, self._max_len - len(seq.tokens))
        if room <= 0:
            return None
        base = self.cache.length(seq.slot)
        if not self.cache.reserve(seq.slot, len(seq.tokens) - base + room):
            return None  # no memory for a draft
        return DraftBuilder(seq, seq.slot, base, seq.tokens[base:], room)

    def _feed(self, builders: Sequence[DraftBuilder]) -> list[Scores]:
        batch, wanted = new_rows(builders)
        hidden = self.model.forward(batch, self.cache, plan=self.plan)
        return [Scores(row) for row in self.model.head(hidden.last[wanted])]


def _plan(options: Options, num_layers: int) -> LayerPlan:
    """Plan what a guess runs. Raises ConfigError."""
    skipped = {"skip_attn": options.skip_attn, "skip_mlp": options.skip_mlp}
    for name, layers in skipped.items():
        for layer in layers:
            if not 0 <= layer < num_layers:
                raise ConfigError(f"{name} must be layers 0 to {num_layers - 1}, got {layer}")
    depth = options.exit
    if depth is None:
        depth = num_layers if any(skipped.values()) else max(1, num_layers // 2)
    if not 1 <= depth <= num_layers:
        raise ConfigError(f"exit must be from 1 to the model's {num_layers} layers, got {depth}")
    return LayerPlan.of(num_layers, exit=depth, **skipped)


def _skip_sets(
    options: Options, num_layers: int, score: Callable[[Options], float]
) -> Iterator[Options]:
    """Yield sets of growing size of the sublayers that are missed least when each is skipped alone."""
    alone = [replace(options, skip_attn=(i,)) for i in range(num_layers)]
    alone += [replace(options, skip_mlp=(i,)) for i in range(num_layers)]
    ranked = sorted(alone, key=score, reverse=True)
    for num_skipped in sorted({max(1, num_layers * i // 4) for i in range(1, 8)}):
        chosen = ranked[:num_skipped]
        yield replace(
            options,
            skip_attn=tuple(sorted(i for skip in chosen for i in skip.skip_attn)),
            skip_mlp=tuple(sorted(i for skip in chosen for i in skip.skip_mlp)),
        )
