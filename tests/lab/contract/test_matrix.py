"""Everything with everything: drafters x precisions of keys and values x budgets x shared prefixes change no token."""

from __future__ import annotations

from functools import cache

import pytest

from forerun.core import registry
from forerun.core.config import Precision
from forerun.core.params import SamplingParams
from forerun.drafters.base.contract import Drafter, LoadedModel, Target
from forerun.engine.engine import Engine
from forerun.lab.contract.candidate import Candidate
from tests.engine.harness import LOOPING, complete, drain, engine_for
from tests.tiny import tiny_model

NUM_SEQS, MAX_LEN, TIGHT = 4, 256, 7
"""Blocks of the tight budget; a sequence of full length takes 4."""
MODEL, NEAR = (tiny_model(3, sharpness=3.0, noise=noise, head_dim=32) for noise in (0.0, 0.15))
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8", "k8v4", "int4")
DRAFTERS = [
    *(name for name in registry.names("drafters") if name != "none"),
    *("draft_model:num_draft=10", "suffix++draft_model", "suffix++recycling:table=none"),
]
PROMPTS = [(LOOPING[i % 2] * 12)[:75] + LOOPING[i % 3] * (1 + i) for i in range(6)]
WANTED = SamplingParams(temperature=0, max_tokens=70, ignore_eos=True)


def new_engine(drafter: str, kv: Precision, num_blocks: int | None, *, shares: bool) -> Engine:
    cache = MODEL.new_cache(NUM_SEQS, MAX_LEN, kv, num_blocks)

    def load(model: str, **options: object) -> LoadedModel:
        return LoadedModel(NEAR, None)

    target = Target(MODEL, None, NUM_SEQS, MAX_LEN, cache, load)
    built = Drafter() if drafter == "none" else Candidate.of(drafter).build(target)
    engine = engine_for(MODEL, built, cache=cache)
    engine.scheduler.reuse = engine.scheduler.reuse and shares
    return engine


@cache
def alone(kv: Precision) -> list[list[int]]:
    """Every prompt by itself, without drafts and shared prefixes."""
    engine = new_engine("none", kv, None, shares=False)
    return [complete(engine, [prompt], WANTED)[0].seq.generated for prompt in PROMPTS]


DEFAULT = ("draft_model", "suffix")


@pytest.mark.parametrize("shares", [True, False], ids=["shared", "not shared"])
@pytest.mark.parametrize("num_blocks", [TIGHT, None], ids=["tight", "roomy"])
@pytest.mark.parametrize(
    "kv", ["int8", *(pytest.param(p, marks=pytest.mark.slow) for p in PRECISIONS if p != "int8")]
)
@pytest.mark.parametrize(
    "drafter", [d if d in DEFAULT else pytest.param(d, marks=pytest.mark.slow) for d in DRAFTERS]
)
def test_no_token_changes(
    drafter: str, kv: Precision, num_blocks: int | None, shares: bool
) -> None:
    engine = new_engine(drafter, kv, num_blocks, shares=shares)
    runs = complete(engine, PROMPTS, WANTED)
    assert [run.seq.generated for run in runs] == alone(kv)
    if num_blocks is None:
        assert engine.stats.drafted > engine.stats.accepted > 0
        assert (
            engine.scheduler.memory_steps["preempted"]
            == engine.scheduler.memory_steps["queued"]
            == 0
        )
    else:
        assert engine.scheduler.memory_steps["preempted"] or engine.scheduler.memory_steps["queued"]
    assert bool(engine.scheduler.num_reused) == engine.scheduler.reuse


@pytest.mark.parametrize("num_shared", [62, 63, 64, 127])
def test_prompts_that_part_at_a_blocks_end_say_what_they_say_alone(num_shared: int) -> None:
    """Both run at once: the second writes its next row into a copy of the block, not into the first's."""
    text = (LOOPING[0] * 20)[:num_shared]
    prompts = [[*text, 3, 1, 2], [*text, 5, 4, 5], [*text, 7, 1, 2]]
    plain = new_engine("none", "fp32", None, shares=False)
    alone = [complete(plain, [prompt], WANTED)[0].seq.generated for prompt in prompts]
    engine = new_engine("suffix", "fp32", None, shares=True)
    runs = [engine.add(prompts[0], WANTED)]
    for prompt in prompts[1:]:  # when the one before has been read
        engine.step()
        runs.append(engine.add(prompt, WANTED))
    drain(engine)
    assert engine.scheduler.num_reused == 2 * num_shared
    assert [run.seq.generated for run in runs] == alone
    assert engine.stats.drafted > engine.stats.accepted > 0
