"""The contract of drafters, checked on tiny random models: `forerun check-drafter`, and a test of every drafter.

A drafter whose `Options()` cannot be built, or with limits too large to be reached in a check, exports
`METHOD.example`. `target.load` loads a relative of the tiny model whatever it is asked for.

Each check of the output asserts that drafts were made, some of their tokens accepted and some rejected, so
that none passes by not drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from forerun.core.errors import ForerunError
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.drafters.base.contract import Drafter
from forerun.engine.controller import Fixed
from forerun.engine.engine import Engine
from forerun.engine.sequence import SequenceState, SequenceStep
from forerun.engine.stats import SpecStats
from forerun.lab.contract.candidate import (
    MAX_LEN,
    VOCAB_SIZE,
    Candidate,
    Checked,
    ContractError,
    ToyGrammar,
)
from forerun.lab.contract.object_size import object_nbytes

PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [5, 4, 5, 4, 5, 4, 5], [7, 1, 2, 7, 1, 2, 7, 1, 2, 7])
"""They repeat themselves, so that every drafter has something to draft."""
GREEDY = SamplingParams(temperature=0, max_tokens=40)
OVERHEAD_NBYTES = 16 * 1024
"""Of a drafter's own objects, which `memory` need not count."""
NUM_ENDED = 32
"""Sequences after which a drafter that forgets none of them has grown by more than one."""


def check_greedy(candidate: Candidate) -> None:
    """Greedy output is that of plain decoding."""
    engine = candidate.engine()
    for prompt in PROMPTS:
        _expect_plain(engine, _complete(engine, [prompt], GREEDY))
    _expect_busy(engine.stats)


def check_batch(candidate: Candidate) -> None:
    """A batch gives the tokens that its sequences give alone."""
    engine = candidate.engine()
    _expect_plain(engine, _complete(engine, PROMPTS, GREEDY))
    _expect_busy(engine.stats)


def check_batch_acceptance(candidate: Candidate) -> None:
    """In a batch sequences have on average at least half as many tokens accepted as alone.

    They have no token in common, so that a draft from another one's state is wrong. Each counts alike: one that repeats
    one token would outweigh the drafts that the others lost.
    """
    apart = [
        ([first + i for i in (1, 2, 3, 1, 2, 3, 1, 2)], _only(first, 8)) for first in (0, 8, 16)
    ]
    together = candidate.engine()
    runs = [together.add(*each) for each in apart]
    while len(together.sequences) == len(runs):  # not longer, or the last of them would be alone
        together.step()
    shares, passes = [], together.stats.passes // len(runs)
    for run, each in zip(runs, apart, strict=True):
        engine = candidate.engine()
        alone = engine.add(*each)
        while engine.has_work and engine.stats.passes < passes:
            engine.step()
        if (most := len(alone.seq.generated) - engine.stats.passes) > 0:
            shares.append(min((len(run.seq.generated) - passes) / most, 1.0))
    if not shares:
        raise ContractError("no token was accepted: does it draft at all?")
    if (share := sum(shares) / len(shares)) < 1 / 2:
        raise ContractError(
            f"in a batch sequences have on average {share:.0%} as many tokens accepted as alone: "
            "does one sequence see another's state?"
        )


def check_penalties(candidate: Candidate) -> None:
    """Penalties, bias and stop tokens hold along the draft."""
    biased = {"logit_bias": {3: 2.0, 9: -5.0}, "min_tokens": 9, "stop_token_ids": (16,)}
    for extra in ({"repetition_penalty": 1.1, "presence_penalty": 0.1}, biased):
        engine = candidate.engine()
        _expect_plain(engine, _complete(engine, PROMPTS, replace(GREEDY, **extra)))
        _expect_busy(engine.stats)


def check_preemption(candidate: Candidate) -> None:
    """A sequence that is preempted and comes back gives the same tokens."""
    engine = candidate.engine(max_num_seqs=2)
    runs = [engine.add(prompt, GREEDY) for prompt in PROMPTS]
    for step in count():
        if not engine.has_work:
            break
        engine.step()
        if step % 7 == 6 and engine.scheduler.running:
            engine.preempt(engine.scheduler.running[0].id)
    _expect_plain(engine, runs)
    _expect_busy(engine.stats)


def check_seed(candidate: Candidate) -> None:
    """A seed gives the tokens of plain sampling."""
    engine = candidate.engine()
    params = SamplingParams(temperature=0.9, top_p=0.9, seed=11, max_tokens=40)
    _expect_plain(engine, _complete(engine, PROMPTS, params))
    _expect_busy(engine.stats)


def check_grammar(candidate: Candidate) -> None:
    """Under a grammar the output is that of plain decoding under it; what it forces is drafted."""
    form = StructuredOutputsParams(regex=str(VOCAB_SIZE))
    greedy = replace(GREEDY, structured_outputs=form)
    engine = candidate.engine()
    for params in (greedy, replace(greedy, temperature=0.9, seed=11)):
        runs = _complete(engine, PROMPTS, params)
        _expect_plain(engine, runs)
        _expect_allowed(runs)
    _expect_busy(engine.stats)


def check_budgets(candidate: Candidate) -> None:
    """Drafts are trees of known tokens within their budgets.

    `Checked` looks at every draft; here the budgets differ by sequence and step, 0 included.
    """
    engine = candidate.engine()
    engine.proposer.controller = _Varying(12)
    runs = [engine.add(prompt, GREEDY) for prompt in PROMPTS]
    while engine.has_work:
        engine.step()
        begun = [run.seq for run in runs if run.has_begun]
        engine.proposer.drafter.propose(begun, [0] * len(begun))
    engine.proposer.drafter.propose([], [])
    _expect_plain(engine, runs)
    _expect_busy(engine.stats)


def check_end(candidate: Candidate) -> None:
    """An ended sequence is forgotten.

    Another with its id gets the drafts of one with an id of its own, and memory does not grow with those that ended.
    What a drafter learned from a sequence for all others, by tokens, may stay.
    """
    drafts = []
    for num_skipped in (0, 7):
        engine = candidate.engine()
        (ended,) = _complete(engine, [[1, 2, 1, 2, 1]], _only(0, 12))
        assert isinstance(engine.proposer.drafter, Checked)
        engine.proposer.drafter.end(ended.seq)
        engine.proposer.drafter.proposed.clear()
        second = Engine(engine.model, engine.cache, engine.proposer.drafter, engine.config)
        second.proposer.isolates_errors = False
        for _ in range(num_skipped):
            second.abort(second.add([1], GREEDY).seq.id)
        _complete(second, [[15, 16, 17, 15, 16, 17, 15]], _only(12, 12))
        drafts.append([(draft.tokens, draft.parents) for draft in engine.proposer.drafter.proposed])
    if drafts[0] != drafts[1]:
        raise ContractError(
            "a new sequence with the id of an ended one gets other drafts than one with an id of its own: "
            "`end` (or `begin`) must reset what is kept by `seq.id`"
        )
    _expect_no_growth(candidate)


def check_memory(candidate: Candidate) -> None:
    """Check that `memory` is at least what the drafter takes."""
    engine = candidate.engine()
    runs = [
        engine.add(prompt, SamplingParams(temperature=1.5, seed=5, max_tokens=None))
        for prompt in (*PROMPTS, [9, 8])
    ]
    while all(len(run.seq.tokens) < MAX_LEN - 32 for run in runs):
        engine.step()
    nbytes, promised = _held(engine), engine.proposer.drafter.memory(len(runs), MAX_LEN).total
    if nbytes > promised + OVERHEAD_NBYTES:
        raise ContractError(
            f"{nbytes} bytes are held for {len(runs)} sequences of {MAX_LEN} tokens, `memory` says {promised}"
        )


CHECKS: tuple[Callable[[Candidate], None], ...] = (
    check_greedy,
    check_batch,
    check_batch_acceptance,
    check_penalties,
    check_preemption,
    check_seed,
    check_grammar,
    check_budgets,
    check_end,
    check_memory,
)


class _Varying(Fixed):
    """Another budget for each sequence and length, from 0 to the given one."""

    def budgets(
        self, steps: Sequence[SequenceStep], num_others: int = 0, *, is_reading: bool = False
    ) -> None:
        """Set a budget for each sequence, from 0 to `budget`."""
        for step in steps:
            step.budget = (7 * len(step.seq.tokens) + step.seq.id) % (self.budget + 1)


def run(candidate: Candidate) -> Iterator[tuple[str, str | None]]:
    """Run every check: yields it in words, and how the drafter broke it, None if it did not."""
    for check in CHECKS:
        broken = None
        try:
            check(candidate)
        except ForerunError as error:
            broken = str(error)
        yield (check.__doc__ or "").partition("\n")[0].rstrip("."), broken


def _complete(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> list[SequenceState]:
    runs = [engine.add(prompt, params) for prompt in prompts]
    while engine.has_work:
        engine.step()
    return runs


def _only(first: int, size: int) -> SamplingParams:
    """Greedily, but only tokens from `first` on."""
    others = [token for token in range(VOCAB_SIZE) if not first <= token < first + size]
    return replace(GREEDY, seed=5, logit_bias=dict.fromkeys(others, -100.0))


def _expect_plain(engine: Engine, runs: Sequence[SequenceState]) -> None:
    """The same tokens as every prompt alone without drafting."""
    cache = engine.model.new_cache(1, MAX_LEN)
    plain = Engine(
        engine.model, cache, Drafter(), engine.config, grammars=ToyGrammar.start, draft_forced=False
    )
    for drafted in runs:
        prompt = drafted.seq.tokens[: drafted.seq.num_prompt]
        (alone,) = _complete(plain, [prompt], drafted.seq.params)
        if drafted.seq.generated != alone.seq.generated:
            raise ContractError(
                f"after {prompt} came {drafted.seq.generated}, plain decoding says {alone.seq.generated}"
            )


def _expect_allowed(runs: Sequence[SequenceState]) -> None:
    for run in runs:
        state: ToyGrammar | None = ToyGrammar(VOCAB_SIZE)
        for token in run.seq.generated:
            state = None if state is None else state.advance(token)
        if state is None:
            raise ContractError(f"the grammar does not allow {run.seq.generated}")


def _expect_busy(stats: SpecStats) -> None:
    for name in ("drafted", "accepted", "rejected"):
        if not getattr(stats, name):
            raise ContractError(f"no token was {name}, so nothing was tested")


def _expect_no_growth(candidate: Candidate) -> None:
    engine = candidate.engine(max_num_seqs=1, max_len=64)
    nbytes = []
    for _ in range(2):
        for _ in range(NUM_ENDED):
            _complete(engine, PROMPTS[:1], replace(GREEDY, seed=5, max_tokens=16))
        nbytes.append(_held(engine))
    allowed = (
        engine.proposer.drafter.memory(1, 64).total - engine.proposer.drafter.memory(0, 64).total
    )
    if nbytes[1] - nbytes[0] > allowed:
        raise ContractError(
            f"after {NUM_ENDED} sequences {nbytes[0]} bytes are held, after {2 * NUM_ENDED} {nbytes[1]}, though none "
            f"runs and one may take {allowed}: `end` must forget, or `example` give limits that are reached sooner"
        )


def _held(engine: Engine) -> int:
    """Return the bytes the drafter takes, without the target's."""
    assert isinstance(engine.proposer.drafter, Checked)
    seqs = [run.seq for run in engine.sequences.values()]
    return object_nbytes(engine.proposer.drafter.inner, without=(engine.model, engine.cache, *seqs))
