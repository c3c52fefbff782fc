"""A target small enough to enumerate, and the exact distribution of its short sequences.

The oracle is written for clarity, in plain Python floats, and shares no code with the package.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, Draft, Seq
from forerun.decoding.grammar import GrammarState
from forerun.decoding.processors import LogitsPipeline
from forerun.decoding.verify import verify

FALSE_ALARM = 1e-6  # of one chi-square test, if its seeds were drawn afresh
PROMPT = (1, 0, 2)

Drafting = Callable[[Seq], Draft]
Tokens = tuple[int, ...]
Distribution = dict[Tokens, float]


@dataclass(frozen=True)
class Toy:
    """A Markov chain of order two: logits (V,) depend on the last two tokens."""

    vocab_size: int = 4
    seed: int = 0
    spread: float = 1.5
    table: Floats = field(init=False)  # (V, V, V)

    def __post_init__(self) -> None:
        table = np.random.default_rng(self.seed).standard_normal((self.vocab_size,) * 3, np.float32)
        object.__setattr__(self, "table", table * np.float32(self.spread))

    def logits(self, tokens: Sequence[int]) -> Floats:
        return self.table[tokens[-2], tokens[-1]]

    def node_logits(self, tokens: Sequence[int], draft: Draft) -> Floats:
        """Logits (1 + N, V) at the root and every node, as one pass of a model gives them."""
        last = [(tokens[-2], tokens[-1])]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            last.append((last[1 + parent][1], token))
        return self.table[[a for a, _ in last], [b for _, b in last]]


def oracle_probs(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    eos_ids: frozenset[int] = frozenset(),
    grammar: GrammarState | None = None,
) -> list[float]:
    """Processed probabilities by the book: one step after the other, sorted lists, no shortcuts."""
    x = adjusted(logits, params, prompt, generated, eos_ids)
    mask = None if grammar is None else grammar.allowed()
    if mask is not None:
        x = [v if ok else -math.inf for v, ok in zip(x, mask, strict=True)]
    ids = range(len(x))
    ranked = sorted(ids, key=lambda i: (-x[i], i))
    if params.temperature == 0:
        return [1.0 if i == ranked[0] else 0.0 for i in ids]
    weights = [math.exp((x[i] - x[ranked[0]]) / params.temperature) for i in ids]
    kept = ranked[: params.top_k] if params.top_k > 0 else ranked
    if params.top_p < 1:
        goal = params.top_p * sum(weights[i] for i in kept)
        collected, nucleus = 0.0, []
        for i in kept:
            if collected >= goal:
                break
            nucleus.append(i)
            collected += weights[i]
        kept = nucleus
    kept = [i for i in kept if weights[i] >= params.min_p * weights[ranked[0]]]
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in ids]


def adjusted(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    eos_ids: frozenset[int],
) -> list[float]:
    x = [float(v) for v in logits]
    if len(generated) < params.min_tokens:
        for i in {*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)}:
            x[i] = -math.inf
    for i, bias in params.logit_bias.items():
        x[i] += bias
    for i in {*prompt, *generated}:
        penalty = params.repetition_penalty
        x[i] = x[i] / penalty if x[i] > 0 else x[i] * penalty
    for i, count in Counter(generated).items():
        x[i] -= params.frequency_penalty * count + params.presence_penalty
    return x


def exact_distribution(
    toy: Toy, params: SamplingParams, length: int, *, grammar: GrammarState | None = None
) -> Distribution:
    """Probability of every sequence of `length` tokens after PROMPT."""
    found: dict[Tokens, tuple[float, GrammarState | None]] = {(): (1.0, grammar)}
    for _ in range(length):
        longer: dict[Tokens, tuple[float, GrammarState | None]] = {}
        for so_far, (mass, state) in found.items():
            logits = toy.logits([*PROMPT, *so_far]).tolist()
            row = oracle_probs(logits, params, PROMPT, so_far, grammar=state)
            for token, p in enumerate(row):
                if p > 0:
                    after = None if state is None else state.advance(token)
                    longer[*so_far, token] = mass * p, after
        found = longer
    return {tokens: mass for tokens, (mass, _) in found.items()}


@dataclass
class Sample:
    """What came out of many generations, and what became of their drafts."""

    counts: Counter[Tokens] = field(default_factory=Counter)
    drafted: int = 0
    accepted: int = 0

    @property
    def rejected(self) -> int:
        return self.drafted - self.accepted


def no_draft(seq: Seq) -> Draft:
    return EMPTY_DRAFT


def generate(
    toy: Toy,
    params: SamplingParams,
    length: int,
    drafting: Drafting,
    seed: int,
    sample: Sample | None = None,
    *,
    grammar: GrammarState | None = None,
) -> Tokens:
    """Decode speculatively: draft, look at all nodes at once, verify."""
    seq = Seq(0, list(PROMPT), params, seed)
    pipeline = LogitsPipeline(
        seq.params, seq.tokens[: seq.num_prompt], noise=seq.noise, grammar=grammar
    )
    while len(seq.generated) < length:
        draft = drafting(seq)
        outcome = verify(seq, draft, toy.node_logits(seq.tokens, draft), pipeline)
        assert outcome.emitted[:-1] == tuple(draft.tokens[i] for i in outcome.path)
        assert not outcome.path or list(outcome.path) == tree.path_to(
            outcome.path[-1], draft.parents
        )
        seq.tokens += outcome.emitted
        if sample is not None:
            sample.drafted += len(draft)
            sample.accepted += len(outcome.path)
    return tuple(seq.generated[:length])


def sample_many(
    toy: Toy,
    params: SamplingParams,
    length: int,
    drafting: Drafting,
    num: int,
    *,
    first_seed: int = 0,
    grammar: GrammarState | None = None,
) -> Sample:
    sample = Sample()
    for seed in range(first_seed, first_seed + num):
        outcome = generate(toy, params, length, drafting, seed, sample, grammar=grammar)
        sample.counts[outcome] += 1
    return sample


def p_value(counts: Mapping[Tokens, int], distribution: Distribution) -> float:
    """Chi-square of the counts against the distribution; 0 for an outcome that cannot happen.

    Cells with fewer than five expected are pooled, as the approximation needs.
    """
    if any(outcome not in distribution for outcome in counts):
        return 0.0
    num = sum(counts.values())
    cells = [(counts.get(outcome, 0), num * mass) for outcome, mass in distribution.items()]
    large = [cell for cell in cells if cell[1] >= 5]
    small = [cell for cell in cells if cell[1] < 5]
    if small:
        large.append((sum(seen for seen, _ in small), sum(expected for _, expected in small)))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in large)
    return float(stats.chi2.sf(statistic, len(large) - 1)) if len(large) > 1 else 1.0
