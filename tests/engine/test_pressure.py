"""Under a tight budget drafts bend, sequences wait, and no token changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.params import SamplingParams
from forerun.core.types import Draft
from forerun.drafting.base import LoadedModel, Target
from forerun.drafting.spec import DrafterSpec
from forerun.engine import pressure
from forerun.engine.engine import Engine
from forerun.engine.pressure import MemoryPressure
from tests.engine.harness import GREEDY, LOOPING, complete, drain, engine_for
from tests.tiny import tiny_model

MODEL = tiny_model()
NEAR = tiny_model(noise=0.05)
MAX_LEN = 256
DRAFTERS = (
    *("none", "suffix", "prompt_lookup", "recycling:table=none,table_mb=0.1", "lookahead"),
    *("draft_model:model=near", "draft_model:model=near,num_draft=10"),
)


def new_engine(spec: str, num_blocks: int | None, *, num_seqs: int = 4) -> Engine:
    cache = MODEL.new_cache(num_seqs, MAX_LEN, num_blocks=num_blocks)

    def load(model: str, **options: object) -> LoadedModel:
        return LoadedModel(NEAR, None)

    target = Target(MODEL, None, num_seqs, MAX_LEN, cache, load)
    return engine_for(MODEL, DrafterSpec.of(spec).build(target), cache=cache)


def random_request(rng: random.Random) -> tuple[list[int], SamplingParams]:
    prompt = [*rng.choice(LOOPING)] * rng.randint(1, 12)
    prompt = prompt[: rng.randint(1, 120)] + [rng.randrange(24) for _ in range(rng.randint(0, 3))]
    temperature = rng.choice((0.0, 0.0, 0.7))
    most = rng.randint(1, MAX_LEN - len(prompt) - 1)
    params = SamplingParams(temperature=temperature, seed=rng.getrandbits(31), max_tokens=most)
    return prompt, params


def held_nbytes(engine: Engine) -> int:
    """Bytes of all pools that share those of the target's."""
    shared = engine.cache.pool.shared
    own = ((each.num_blocks - len(each._unbacked)) * each.block_nbytes for each in shared.pools)
    return sum(own) + shared.unused


def soak(spec: str, num_blocks: int, num_requests: int, seed: int) -> Engine:
    """Random requests, some aborted, some preempted, by a tight and a roomy engine; the tight one is returned."""
    rng = random.Random(seed)
    tight, roomy = new_engine(spec, num_blocks), new_engine(spec, None)
    pairs: list[tuple] = []
    aborted: set[int] = set()
    pool = tight.cache.pool
    while len(pairs) < num_requests or tight.has_work:
        if len(pairs) < num_requests and rng.random() < 0.3:
            prompt, params = random_request(rng)
            pairs.append((tight.add(prompt, params), prompt, params))
        running = [seq.id for seq in tight.scheduler.running]
        if running and rng.random() < 0.01:
            tight.preempt(rng.choice(running))
        if tight.sequences and rng.random() < 0.01:
            aborted.add(chosen := rng.choice([*tight.sequences]))
            tight.abort(chosen)
        tight.step()
        assert held_nbytes(tight) == num_blocks * pool.block_nbytes
        if pool.shared.pools == [pool]:
            assert pool.num_used + pool.num_idle + pool.num_free == num_blocks
    for run, prompt, params in pairs:
        expected = roomy.add(prompt, params)
        drain(roomy)
        got, wanted = run.seq.generated, expected.seq.generated
        assert got == (wanted[: len(got)] if run.seq.id in aborted else wanted)
    return tight


@pytest.mark.parametrize(
    "spec",
    [
        each if i in (0, 1, 6) else pytest.param(each, marks=pytest.mark.slow)
        for i, each in enumerate(DRAFTERS)
    ],
)
def test_answers_under_a_tight_budget_are_those_of_a_roomy_one(spec: str) -> None:
    tight = soak(spec, num_blocks=5, num_requests=10, seed=1)
    assert tight.pressure.taken[pressure.QUEUED] or tight.pressure.taken[pressure.PREEMPTED]
    if spec != "none":
        assert tight.stats.drafted > tight.stats.accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("spec", DRAFTERS)
@pytest.mark.parametrize("num_blocks", [4, 7])
def test_a_thousand_requests_under_a_tight_budget(spec: str, num_blocks: int) -> None:
    tight = soak(spec, num_blocks, num_requests=1000, seed=num_blocks)
    taken = tight.pressure.taken
    assert taken[pressure.PREEMPTED]
    assert taken[pressure.QUEUED]
    assert taken[pressure.EVICTED]


def test_rows_that_must_be_there_come_before_drafts() -> None:
    """Two sequences at the end of a block, one block left: it is the second one's row that gets it, no draft."""
    engine = new_engine("suffix", 5, num_seqs=2)
    runs = [engine.add(([1, 2, 3] * 21)[: 60 + i], GREEDY) for i in range(2)]
    while engine.has_work:
        engine.step()
    assert all(len(run.seq.generated) == GREEDY.max_tokens for run in runs)
    assert engine.scheduler.num_preempted == 0


def test_each_rung_is_told_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    engine = new_engine("suffix", 4, num_seqs=4)
    with caplog.at_level("INFO"):
        complete(engine, [[*LOOPING[0]] * 10, [*LOOPING[1]] * 10, [*LOOPING[2]] * 9], GREEDY)
        complete(engine, [[*LOOPING[2]] * 10, [*LOOPING[1]] * 9, [*LOOPING[0]] * 9], GREEDY)
    told = [record.message for record in caplog.records if "memory is tight" in record.message]
    assert len(told) == len(set(told)) == sum(count > 0 for count in engine.pressure.taken.values())
    assert engine.pressure.taken[pressure.QUEUED] > 1


class FixedCosts(MemoryPressure):
    """A ladder that has measured what a test says."""

    def __init__(self, *, token_s: float, prompt_row_s: float, reused: int) -> None:
        engine = new_engine("none", 4, num_seqs=1)
        super().__init__(engine.cache, engine.scheduler, engine.stats)
        self.scheduler.num_reused, self.scheduler.num_queried = reused, 10_000
        self.learn(token_s, 1, 0)
        self.learn(prompt_row_s, 0, 1)


@given(st.integers(0, 20), st.integers(0, 20))
def test_the_gain_of_a_draft_is_that_of_the_nodes_that_would_be_cut(room: int, num: int) -> None:
    costs = FixedCosts(token_s=1, prompt_row_s=0.01, reused=0)
    draft = Draft((3,) * num, tree.chain(num), confidence=(0.5,) * num)
    expected = sum(0.5 ** (i + 1) for i in range(room, num))
    assert costs._gain(draft, room) == pytest.approx(expected)


def test_a_prefix_is_evicted_for_a_draft_only_where_that_saves_time() -> None:
    """Prefixes that nobody comes back to are worth less than a token; those that all share, more."""
    cheap = FixedCosts(token_s=0.002, prompt_row_s=0.0008, reused=0)
    wanted = FixedCosts(token_s=0.002, prompt_row_s=0.0008, reused=9_000)
    assert cheap._evicts(1.0, 1)
    assert not wanted._evicts(1.0, 1)
    assert not cheap._evicts(0.01, 1)


@pytest.mark.parametrize("extra", [{"temperature": 0.8, "seed": 3}, {"logprobs": 2}])
def test_logits_in_blocks_give_the_same_answers(extra: dict) -> None:
    params = replace(GREEDY, **extra)
    found = []
    for rows in (1, 3, 64):
        engine = new_engine("suffix", None)
        engine._logit_rows = rows
        runs = complete(engine, LOOPING, params)
        found.append([(run.seq.generated, run.logprobs) for run in runs])
        assert engine.stats.drafted > engine.stats.accepted > 0
        assert engine._logits is not None
        assert len(engine._logits) <= max(rows, 1 + 7)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("spec", ["suffix", "draft_model:model=near"])
def test_twenty_turns_of_two_chats_in_turn_within_a_fixed_budget(spec: str) -> None:
    """Each turn finds what the last ones left; what was evicted for the other chat is read again; nothing fails."""
    tight, roomy = new_engine(spec, 5), new_engine("none", None)
    params = replace(GREEDY, max_tokens=6, ignore_eos=True)
    chats, lost, found = ([1], [2]), 0, 0
    for turn in range(20):
        for i, chat in enumerate(chats):
            before = len(chat)
            chat += [3 + i, turn % 24, 5, 4, 1, 2]
            (run,), (wanted,) = (complete(engine, [chat], params) for engine in (tight, roomy))
            assert run.seq.generated == wanted.seq.generated
            assert run.ttft_s is not None
            assert run.seq.num_reused <= before
            if turn:
                found += run.seq.num_reused == before - 1
                lost += run.seq.num_reused < before - 1
            chat += run.seq.generated
            assert held_nbytes(tight) == 5 * tight.cache.pool.block_nbytes
    assert found > 5
    assert lost > 5
    assert tight.pressure.taken[pressure.EVICTED]
    assert tight.scheduler.num_preempted == 0
