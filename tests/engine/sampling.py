"""Do the samples of many seeds follow the model's distribution? Empirical against exact, of whole sequences.

The distribution of the next tokens after a prompt is computed exactly: a plain pass after every beginning that is
likely enough, processed as the request says. Then the engine samples the prompt many times with drafting, each time
with another seed, and for every length the counts of the whole sequences are compared with it by Pearson's chi-square
test:

    chi2 = sum over sequences of (seen - expected)^2 / expected

What is too rare to be counted is counted together; a sequence of chance 0 fails the test at once.

The report has one stated false-alarm rate: the chance that a right engine is called wrong. It is
shared out evenly over the tests (Bonferroni). Seeds are fixed, so a report can be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2

from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.params import SamplingParams
from forerun.decoding.processors import LogitsPipeline
from forerun.engine.engine import Engine
from forerun.engine.stats import SpecStats
from forerun.model.model import Model

MIN_EXPECTED = 10.0
"""Samples a sequence must be expected to get to be a cell of its own: fewer are not chi-square in the far tail."""

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The likely beginnings of what follows a prompt, each with its probability, and the exact row after it."""

    mass: Mapping[Tokens, float]
    rows: Mapping[Tokens, Floats]
    """(V,): probabilities of the token after a beginning; every one in `mass` but the longest has its row."""

    def allows(self, sample: Tokens) -> bool:
        """False if the sample has probability 0, as far as the rows are known."""
        known = (i for i in range(len(sample)) if sample[:i] in self.rows)
        return all(self.rows[sample[:i]][sample[i]] > 0 for i in known)


@dataclass(frozen=True, slots=True)
class Check:
    """One chi-square test: sequences of `length` tokens after one prompt under one set of parameters."""

    prompt: int
    params: SamplingParams
    length: int
    samples: int
    statistic: float
    cells: int
    impossible: int
    drafted: int
    accepted: int

    @property
    def p_value(self) -> float:
        """Chance of counts at least as far off under the distribution; 0 if something impossible happened."""
        if self.impossible:
            return 0.0
        return float(chi2.sf(self.statistic, self.cells - 1)) if self.cells > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """All tests, and the verdict at `false_alarm`, the rate of the whole report."""

    checks: tuple[Check, ...]
    false_alarm: float

    @property
    def threshold(self) -> float:
        """A p-value below it fails its test."""
        return self.false_alarm / max(1, len(self.checks))

    @property
    def failed(self) -> tuple[Check, ...]:
        """The tests that failed."""
        return tuple(check for check in self.checks if check.p_value < self.threshold)

    @property
    def was_tested(self) -> bool:
        """True if drafts were both accepted and rejected, so that verification had something to get wrong."""
        accepted = sum(check.accepted for check in self.checks)
        return 0 < accepted < sum(check.drafted for check in self.checks)


def run(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[SamplingParams],
    *,
    length: int,
    num_samples: int,
    seed: int = 0,
) -> Iterator[tuple[Check, ...]]:
    """Test every prompt under every setting, once a length from 1 to `length`."""
    for index, prompt in enumerate(prompts):
        for params in settings:
            given = replace(params, ignore_eos=True)
            wanted = exact_distribution(
                engine.model, prompt, given, length, floor=MIN_EXPECTED / num_samples
            )
            sequences, stats = draw(engine, prompt, given, length, range(seed, seed + num_samples))
            drafted = (stats.drafted, stats.accepted)
            yield tuple(
                Check(index, params, n, num_samples, *compare(wanted, sequences, n), *drafted)
                for n in range(1, length + 1)
            )


def exact_distribution(
    model: Model, prompt: Sequence[int], params: SamplingParams, length: int, floor: float
) -> Distribution:
    """Compute the distribution of up to `length` tokens: every sequence whose mass is at least `floor`."""
    mass: dict[Tokens, float] = {(): 1.0}
    rows: dict[Tokens, Floats] = {}
    cache = model.new_cache(1, len(prompt) + length)
    beginnings: list[Tokens] = [()]
    pipeline = LogitsPipeline(params, prompt)
    for _ in range(length):
        longer: list[Tokens] = []
        for beginning in beginnings:
            batch = Batch((Segment(0, 0, (*prompt, *beginning)),))
            logits = model.head(model.forward(batch, cache).last[-1:])[0]
            row = pipeline.probs(logits, beginning)
            rows[beginning] = row
            wide = row.astype(np.float64)
            probs = wide / wide.sum() * mass[beginning]
            for token in np.flatnonzero(probs >= floor).tolist():
                longer.append((*beginning, token))
                mass[longer[-1]] = float(probs[token])
        beginnings = longer
    return Distribution(mass, rows)


def draw(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, length: int, seeds: range
) -> tuple[list[Tokens], SpecStats]:
    """Draw one sequence of `length` tokens a seed, drafted and verified by the engine, many at once."""
    wanted = replace(params, max_tokens=length + 1)  # the last draft may go beyond
    runs = [engine.add(prompt, replace(wanted, seed=seed)) for seed in seeds]
    while engine.has_work:
        engine.step()
    sequences = [tuple(each.seq.generated[:length]) for each in runs]
    return sequences, SpecStats.total(each.stats for each in runs)


def compare(
    exact: Distribution, sequences: Sequence[Tokens], length: int
) -> tuple[float, int, int]:
    """Chi-square statistic of the first `length` tokens, its number of cells, and impossible sequences."""
    counts = Counter(tokens[:length] for tokens in sequences)
    num = len(sequences)
    impossible = sum(n for tokens, n in counts.items() if not exact.allows(tokens))
    cells = [(counts[t], num * mass) for t, mass in exact.mass.items() if len(t) == length]
    cells.sort(key=lambda cell: cell[1])
    rest = (num - sum(seen for seen, _ in cells), num - sum(expected for _, expected in cells))
    while cells and 0 < rest[1] < MIN_EXPECTED:
        rare = cells.pop(0)
        rest = (rest[0] + rare[0], rest[1] + rare[1])
    if rest[1] > 0:
        cells.append(rest)
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    return statistic, len(cells), impossible
