"""Under a tight budget drafts bend, sequences wait, and no token changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from forerun.core.batch import Batch
from forerun.core.params import SamplingParams
from forerun.drafters.base.contract import LoadedModel, Target
from forerun.drafters.base.spec import DrafterSpec
from forerun.engine import scheduler
from forerun.engine.engine import Engine
from forerun.model.cache.blocks import BLOCK_ROWS
from forerun.model.model import Hidden
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
    assert (
        tight.scheduler.memory_steps[scheduler.QUEUED]
        or tight.scheduler.memory_steps[scheduler.PREEMPTED]
    )
    if spec != "none":
        assert tight.stats.drafted > tight.stats.accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("spec", DRAFTERS)
@pytest.mark.parametrize("num_blocks", [4, 7])
def test_a_thousand_requests_under_a_tight_budget(spec: str, num_blocks: int) -> None:
    tight = soak(spec, num_blocks, num_requests=1000, seed=num_blocks)
    taken = tight.scheduler.memory_steps
    assert taken[scheduler.PREEMPTED]
    assert taken[scheduler.QUEUED]
    assert taken[scheduler.EVICTED]


def test_rows_that_must_be_there_come_before_drafts() -> None:
    """Two sequences at the end of a block, one block left: it is the second one's row that gets it, no draft."""
    engine = new_engine("suffix", 5, num_seqs=2)
    runs = [engine.add(([1, 2, 3] * 21)[: 60 + i], GREEDY) for i in range(2)]
    while engine.has_work:
        engine.step()
    assert all(len(run.seq.generated) == GREEDY.max_tokens for run in runs)
    assert not engine.scheduler.memory_steps[scheduler.PREEMPTED]


def test_each_rung_is_told_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    engine = new_engine("suffix", 4, num_seqs=4)
    with caplog.at_level("INFO"):
        complete(engine, [[*LOOPING[0]] * 10, [*LOOPING[1]] * 10, [*LOOPING[2]] * 9], GREEDY)
        complete(engine, [[*LOOPING[2]] * 10, [*LOOPING[1]] * 9, [*LOOPING[0]] * 9], GREEDY)
    told = [record.message for record in caplog.records if "memory is tight" in record.message]
    assert (
        len(told)
        == len(set(told))
        == sum(count > 0 for count in engine.scheduler.memory_steps.values())
    )
    assert engine.scheduler.memory_steps[scheduler.QUEUED] > 1


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
    assert found > 5
    assert lost > 5
    assert tight.scheduler.memory_steps[scheduler.EVICTED]
    assert not tight.scheduler.memory_steps[scheduler.PREEMPTED]


USERS, CONTEXT = 16, 4096


@pytest.mark.parametrize(
    ("share", "num_prompt", "most_preempted", "most_recomputed"),
    [(4, 3800, 2, 0.2), (2, 3800, 1, 0.05), (1, 3800, 0, 0.0), (4, 500, 2, 0.6)],
)
def test_sixteen_users_within_a_budget_wait_and_all_end(
    share: int, num_prompt: int, most_preempted: float, most_recomputed: float
) -> None:
    """A pool of a part of what all need: how often a sequence is preempted, and the rows that it costs, are bounded."""
    model = tiny_model(3, sharpness=3.0, max_position=2 * CONTEXT)
    blocks = USERS * CONTEXT // BLOCK_ROWS // share
    cache = model.new_cache(USERS, CONTEXT, num_blocks=blocks)
    engine, rows = engine_for(model, cache=cache), [0]
    forward = model.forward

    def counted(batch: Batch, *given: object) -> Hidden:
        rows[0] += batch.num_rows
        return forward(batch, *given)

    parts = {"config": model.config, "head": model.head, "topk": model.topk}
    engine.model = type("Counted", (), parts)()
    engine.model.forward = counted
    rng = random.Random(share)
    prompts = [[user, *(rng.randrange(23) for _ in range(num_prompt - 1))] for user in range(USERS)]
    num_new = min(256, CONTEXT - num_prompt) if num_prompt > 1000 else 3000
    params = replace(GREEDY, max_tokens=num_new, ignore_eos=True)
    runs = complete(engine, prompts, params)
    assert all(len(run.seq.generated) == num_new for run in runs)
    taken, ideal = engine.scheduler, USERS * (num_prompt + num_new - 1)
    assert rows[0] == ideal + taken.num_recomputed
    assert taken.num_recomputed <= most_recomputed * ideal
    assert taken.memory_steps[scheduler.PREEMPTED] <= most_preempted * USERS
    answers = [run.seq.generated for run in runs[:2]]
    roomy = engine_for(model, cache=model.new_cache(2, CONTEXT))
    assert [run.seq.generated for run in complete(roomy, prompts[:2], params)] == answers
