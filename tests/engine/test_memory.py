"""The plan is what is really allocated, and a budget is kept or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun import LLM, SamplingParams
from forerun.core.batch import Batch, Segment
from forerun.core.config import EngineConfig, Precision
from forerun.core.errors import CapacityError, ConfigError
from forerun.drafters.base.contract import DrafterBytes, Target
from forerun.drafters.base.spec import DrafterSpec
from forerun.engine import memory
from forerun.engine.memory import (
    COMPONENTS,
    DrafterNumbers,
    MemoryPlan,
    ModelNumbers,
    Workload,
)
from forerun.engine.planner import Planner, drafter_numbers
from forerun.model.backends.native import MAX_ROWS
from forerun.model.cache.blocks import blocks_of
from forerun.model.kernels import native
from forerun.model.loader import blank_model, load_model
from forerun.weights.checkpoint import open_checkpoint
from tests.native.models import KINDS, text
from tests.native.models import native as of_kind
from tests.tiny import tiny_model

MB = 10**6
MODEL = ModelNumbers(
    hidden_size=576,
    vocab_size=49152,
    weights=97 * MB,
    num_tokens=49152,
    scratch=lambda load, num_rows, num_nodes: 40_000 * min(num_rows, 64) + 8 * load.max_len,
    process=60 * MB,
    kv_blocks={"fp16": 64 * 23040},
)
ROUNDING = replace(MODEL, kv_blocks=MODEL.kv_blocks | {"int8": 64 * 12240, "k8v4": 64 * 9790})
"""The same, where a user could choose fewer bits."""
DRAFTERS = (
    *(
        DrafterNumbers(
            name=name,
            fixed=DrafterBytes(tables=nbytes),
            of_seq=lambda max_len: DrafterBytes(tables=60_000),
            num_nodes=7,
        )
        for name, nbytes in (("large", 16 * MB), ("small", 2 * MB))
    ),
    DrafterNumbers(name="none"),
)
LOADS = st.builds(
    Workload,
    num_seqs=st.integers(1, 16),
    max_len=st.integers(2, 8192),
    precision=st.just("fp16"),
    prefill_rows=st.integers(1, 512),
)


@given(LOADS, st.integers(0, 1_000 * MB))
def test_a_budget_is_kept_and_works_from_the_smallest_on(load: Workload, budget: int) -> None:
    least = memory.smallest(MODEL, DRAFTERS, load)
    found = memory.fit(MODEL, DRAFTERS, load, budget)
    assert (found is not None) == (budget >= least.total)
    if found is not None:
        assert found.total <= budget
        assert found.num_blocks >= load.blocks_seq
        assert tuple(found.components) == COMPONENTS


@given(LOADS, st.integers(0, 1_000 * MB), st.integers(0, 1_000 * MB))
def test_more_memory_never_gives_less(load: Workload, one: int, other: int) -> None:
    low, high = (memory.fit(MODEL, DRAFTERS, load, budget) for budget in sorted((one, other)))
    if low is not None:
        assert high is not None
        names = [each.name for each in DRAFTERS]
        assert names.index(high.drafter.name) <= names.index(low.drafter.name)
        if high.drafter == low.drafter:
            ways = [*memory.halved(MODEL, load)]
            of_low, of_high = (
                ways.index(replace(found.workload, num_blocks=None)) for found in (low, high)
            )
            assert of_high <= of_low
            assert of_high < of_low or high.num_blocks >= low.num_blocks


def test_what_is_asked_for_is_kept_where_it_fits() -> None:
    load = Workload(num_seqs=8, max_len=1024, precision="fp16", prefill_rows=256)
    whole = memory.plan(MODEL, DRAFTERS[0], load)
    fitted = memory.fit(MODEL, DRAFTERS, load, whole.total)
    assert fitted is not None
    assert fitted.components == whole.components
    fewer_logits = memory.fit(MODEL, DRAFTERS, load, whole.total - 170 * MB)
    assert fewer_logits is not None
    kept = fewer_logits.workload
    assert (fewer_logits.drafter.name, kept.logit_rows, kept.num_seqs) == ("large", 32, 8)
    tight = memory.fit(MODEL, DRAFTERS, load, whole.total - 185 * MB)
    assert tight is not None
    assert tight.drafter.name == "small"


@given(LOADS, st.integers(0, 64 * MB))
def test_drafts_are_whole_where_drafting_fits(load: Workload, more: int) -> None:
    least = memory.drafting(MODEL, DRAFTERS[0], load).total
    plan = memory.fit(MODEL, DRAFTERS, load, least + more)
    assert plan is not None
    assert (plan.drafter, plan.workload.num_seqs) == (DRAFTERS[0], load.num_seqs)
    below = memory.fit(MODEL, DRAFTERS, load, least - 1)
    assert below is None or below.drafter != DRAFTERS[0] or below.workload.num_seqs < load.num_seqs


@given(LOADS, st.integers(0, 1_000 * MB))
def test_keys_and_values_stay_as_they_were_asked_for(load: Workload, budget: int) -> None:
    assert memory.smallest(ROUNDING, DRAFTERS, load) == memory.smallest(MODEL, DRAFTERS, load)
    found = memory.fit(ROUNDING, DRAFTERS, load, budget)
    assert found == memory.fit(MODEL, DRAFTERS, load, budget)
    assert found is None or found.workload.precision == "fp16"


@pytest.mark.parametrize(
    ("drafter", "num_nodes"),
    [
        ("suffix:num_draft=5++prompt_lookup:num_draft=9", 14),
        (
            "mlp_speculator:model=untrained,num_draft=6++recycling:table=none",
            6,
        ),  # the network's tree
    ],
)
def test_rows_are_planned_for_the_nodes_that_can_be_drafted(drafter: str, num_nodes: int) -> None:
    model = tiny_model()
    target = Target(model, None, 2, 64, model.new_cache(2, 64))
    found = drafter_numbers(drafter, DrafterSpec.of(drafter).build(target), model, [64])
    assert found.num_nodes == num_nodes


@given(LOADS)
def test_one_number_after_the_other_is_halved(load: Workload) -> None:
    loads = [*memory.halved(MODEL, load)]
    assert loads[0] == load
    assert loads[-1] == replace(
        load, num_seqs=1, prefill_rows=min(load.prefill_rows, 16), logit_rows=1
    )
    totals = [memory.plan(MODEL, DRAFTERS[0], each).total for each in loads]
    assert totals == sorted(totals, reverse=True)
    for one, other in pairwise(loads):
        less = {f.name for f in fields(one) if getattr(one, f.name) != getattr(other, f.name)}
        assert len(less) == 1
        (name,) = less
        assert getattr(other, name) == getattr(one, name) // 2 or name == "prefill_rows"


def test_what_is_given_up_comes_in_order() -> None:
    """The drafter as late as can be; of what is run, an unasked context first, sequences last."""
    load = Workload(
        num_seqs=4, max_len=8192, min_len=4096, precision="fp16", prefill_rows=64,
        num_checkpoints=4,
    )  # fmt: skip
    model = replace(MODEL, state=4 * MB, state_row=1000)
    found: list[MemoryPlan] = []
    for budget in range(memory.smallest(model, DRAFTERS, load).total, 1_000 * MB, MB // 4):
        one = memory.fit(model, DRAFTERS, load, budget)
        assert one is not None
        found.append(replace(one, workload=replace(one.workload, num_blocks=None)))
    found.reverse()
    order = [each.name for each in DRAFTERS]
    names = [order.index(each.drafter.name) for each in found]
    assert names == sorted(names)
    assert found[0].workload == load
    ways = [*memory.halved(model, load)]
    for name in range(len(DRAFTERS)):
        kept = [ways.index(each.workload) for each in found if order[name] == each.drafter.name]
        assert kept == sorted(kept)
        assert kept[-1] > 10


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"head_bits": 4}, marks=pytest.mark.slow)],
    ids=str,
)
def test_a_model_without_weights_has_the_size_of_the_loaded_one(
    default_model: Path, options: dict[str, int]
) -> None:
    if "head_bits" in options and not native.available():
        pytest.skip("a rounded head needs the native kernels")
    blank = blank_model(open_checkpoint(default_model), **options)  # type: ignore[arg-type]
    loaded = load_model(open_checkpoint(default_model), **options)  # type: ignore[arg-type]
    assert blank.nbytes() == loaded.nbytes()


def test_a_plan_maps_no_more_than_is_planned(default_model: Path) -> None:
    """A server's long context for eight sequences of an 8B would be 34 GB, which systems refuse to map."""
    planner = Planner.of(EngineConfig(model=str(default_model), is_server=True), "cpu")
    cache = planner.target().cache
    assert cache is not None
    assert cache.pool.num_blocks == planner.workload.num_blocks
    assert cache.pool.num_blocks < blocks_of(planner.workload.max_len) * cache.num_slots


def test_the_vectors_of_a_request_are_planned(default_model: Path) -> None:
    planned = [
        Planner.of(EngineConfig(model=str(default_model), is_server=True, num_vectors=count), "cpu")
        .plan()
        .components["server"]
        for count in (0, 1000)
    ]
    assert planned[1] - planned[0] == 1000 * 576 * 4


def test_what_does_not_fit_is_refused_with_the_smallest_budget(default_model: Path) -> None:
    config = EngineConfig(model=str(default_model), max_model_len=512)
    planner = Planner.of(config, "cpu")
    least, said = planner.smallest().total, planner.smallest_budget()
    with pytest.raises(CapacityError, match=f"smallest that works is {-(-said // 2**20)}MiB"):
        planner.fit(least - 1)
    assert planner.fit(least).total <= least <= said


def test_what_does_not_fit_is_refused_with_the_precision_that_would(default_model: Path) -> None:
    config = EngineConfig(model=str(default_model), max_model_len=2048)
    planner = Planner.of(config, "cpu")
    rounded = planner.rounded()
    assert [*rounded] == ["int8", "k8v4", "int4"]
    below = planner.smallest().total
    for kv, least in rounded.items():
        assert least < below
        with pytest.raises(CapacityError, match=f"; --kv {kv} fits, which may change tokens"):
            planner.fit(below - 1)
        assert Planner.of(replace(config, kv=kv), "cpu").fit(least).total <= least
        below = least
    with pytest.raises(CapacityError) as refused:
        planner.fit(below - 1)
    assert "--kv" not in str(refused.value)


TEXTS = (
    "List the months of the year, then list the months of the year again:",
    "One two three. One two three. One two",
    "The sea is",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n",
)


@pytest.mark.parametrize("drafter", ["auto", pytest.param("suffix", marks=pytest.mark.slow)])
def test_a_budget_changes_no_token(default_model: Path, drafter: str) -> None:
    """`auto` keys and values, from the smallest budget to a roomy one, greedy and with seeds."""
    sizes = {"max_model_len": 512, "max_num_seqs": 3, "drafter": drafter, "controller": False}
    params = [
        SamplingParams(max_tokens=40, temperature=i % 2 * 0.8, seed=i, ignore_eos=True)
        for i in range(len(TEXTS))
    ]
    wanted = LLM(str(default_model), **sizes).generate(TEXTS, params)
    planner = Planner.of(EngineConfig(model=str(default_model), **sizes), "cpu")
    least, whole = planner.smallest().total, planner.plan().total
    for share in (0, 0.6):
        llm = LLM(str(default_model), memory_budget=int(least + share * (whole - least)), **sizes)
        assert llm.plan is not None
        found = llm.generate(TEXTS, params)
        assert [[*one.outputs[0].token_ids] for one in found] == [
            [*one.outputs[0].token_ids] for one in wanted
        ], share
        stats = llm.engine.stats
        if llm.plan.drafter.name != "none":
            assert stats.drafted > stats.accepted > 0
        assert share == 0 or llm.plan.drafter.name != "none"


def test_an_engine_within_a_larger_budget_has_all_that_was_asked_for(default_model: Path) -> None:
    sizes = {"max_model_len": 1024, "max_num_seqs": 3, "drafter": "suffix"}
    planner = Planner.of(EngineConfig(model=str(default_model), **sizes), "cpu")
    roomy, tight = (
        LLM(str(default_model), memory_budget=budget, **sizes)
        for budget in (None, planner.smallest().total)
    )
    assert (tight.drafter_spec.name, tight.engine.cache.num_slots) != ("suffix", 3)
    for budget in (None, "8GiB"):
        again = tight.with_drafter("suffix", memory_budget=budget)
        assert again.drafter_spec == roomy.drafter_spec
        assert again.max_len == roomy.max_len
        assert again.engine.cache.num_slots == 3


@pytest.mark.parametrize("given", ["600", "600 mb", "-1", -1, "much"])
def test_a_wrong_budget_is_refused_at_once(given: str | int) -> None:
    with pytest.raises(ConfigError, match="memory_budget must be a size such as 600MiB, got"):
        EngineConfig(memory_budget=given)


QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
CONFIGURATIONS = (
    ("recycling", 2, 256, {}),
    *(("none", n, length, {}) for n, length in ((1, 256), (8, 512), (4, 2048))),
    *(("recycling", n, length, {}) for n, length in ((1, 4096), (8, 1024))),
    ("recycling:table_mb=64", 1, 256, {}),
    ("suffix", 8, 256, {"threads": 2}),
    ("prompt_lookup", 2, 1024, {}),
    ("lookahead", 1, 512, {}),
    ("none", 2, 512, {"kv": "fp32"}),
    ("none", 2, 512, {"head_bits": 4}),
    ("draft_model:model=self", 2, 512, {}),
    ("auto", 2, 512, {}),
    ("none", 2, 512, {"kv": "k8v4"}),
)


def in_a_process(
    script: str, options: dict[str, object], *arguments: str, **environment: str
) -> dict:
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), json.dumps(options), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"} | environment,
        check=True,
    )
    return json.loads(run.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "drafter"), [("218MiB", "auto"), ("218MiB", "suffix"), ("270MiB", "auto")]
)
def test_what_is_resident_never_exceeds_the_budget(
    default_model: Path, budget: str, drafter: str
) -> None:
    """A thousand random requests, some aborted or preempted, sampled after each step; answers are a roomy engine's."""
    if not native.available() or not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("measured on Linux with the native kernels")
    given = {
        "model": str(default_model),
        "memory_budget": budget,
        "max_model_len": 1024,
        "drafter": drafter,
    }
    found = in_a_process("soak_resident.py", given | {"threads": 1, "seed": 0}, "1000")
    assert found["most"] <= found["budget"]
    assert found["requests"] >= 1000
    assert found["different"] == 0
    assert found["aborted"]
    assert found["taken"]["preempted"]
    assert found["taken"]["queued"]
    assert found["taken"]["evicted_prefixes"]
    if found["drafter"] != "none":
        assert found["drafted"] > found["accepted"] > 0


@pytest.mark.parametrize(
    ("drafter", "num_seqs", "max_len", "options"),
    [
        pytest.param(*each, marks=() if i == 0 else pytest.mark.slow, id=f"{each[0]}-{each[1:]}")
        for i, each in enumerate(CONFIGURATIONS)
    ],
)
def test_the_plan_is_what_becomes_resident(
    default_model: Path, drafter: str, num_seqs: int, max_len: int, options: dict[str, object]
) -> None:
    """Each component by smaps, a megabyte or two of the small ones is the allocator's; the sum by the peak."""
    if not native.available() or not Path("/proc/self/pagemap").exists():
        pytest.skip("measured on Linux with the native kernels")
    given = {"model": str(default_model), "drafter": drafter, **options}
    given |= {"max_num_seqs": num_seqs, "max_model_len": max_len}
    found = in_a_process("resident.py", given)
    measured, planned = found["measured"], found["planned"]
    planned["drafter"] = sum(planned[name] for name in COMPONENTS if name.startswith("drafter"))
    # A network is the first to use some of the program: both are measured as it is built.
    program = found["process"] + memory.LATER_NBYTES
    planned["drafter"] += planned["program"] - program
    planned["program"] = program
    # What a drafter learns grows as it is used.
    planned["run"] = planned["step_buffers"] + planned["logits"] + planned["drafter"]
    tolerance = {"weights": 2 * MB, "tokenizer": 4 * MB, "program": 2 * memory.PROCESS_NOISE_NBYTES}
    for name in ("program", "tokenizer", "weights", "kv"):
        most = 0.05 * planned[name] + tolerance.get(name, 0)
        assert abs(measured[name] - planned[name]) <= most, (name, measured, planned)
    assert measured["run"] <= planned["run"] - measured["drafter"] + 6 * MB, (measured, planned)
    assert measured["drafter"] <= planned["drafter"]
    assert measured["total"] <= planned["total"], (measured, planned)
    used = planned["total"] - planned["drafter"] + measured["drafter"]
    assert measured["total"] >= 0.85 * used, (measured, planned)


@pytest.mark.skipif(native.reason() is not None, reason="no native kernels")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "flat"])
def test_the_kernels_take_what_is_planned_for_every_kind_of_layer(
    kind: str, precision: Precision
) -> None:
    """Experts, shared keys, per-layer inputs and heads by layer: of many rows, of one behind them, and of the head."""
    config, dtype = KINDS[kind]
    model = of_kind(config, dtype, num_threads=2)
    cache = model.new_cache(1, 2 * MAX_ROWS, precision)
    planned = model.scratch_nbytes(cache, 1000, 0, 3)
    for base, num_rows in ((0, MAX_ROWS), (MAX_ROWS, 1)):
        hidden = model.forward(Batch((Segment(0, base, text(num_rows)),)), cache)
        cache.keep(0, range(num_rows))
    model.topk(hidden.last.repeat(3, 0), 1, log_normaliser=True)
    assert model.runtime.nbytes() <= planned <= 1.1 * model.runtime.nbytes()


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "again"])
@pytest.mark.parametrize("more_mib", [0, 40])
@pytest.mark.parametrize(
    "options",
    [
        {"max_model_len": 512},
        {"max_model_len": 4096, "max_num_seqs": 1},
        {"max_model_len": 512, "kv": "int8", "drafter": "suffix"},
    ],
    ids=str,
)
def test_a_process_stays_within_its_budget(
    default_model: Path, tmp_path: Path, options: dict[str, object], more_mib: int, is_first: bool
) -> None:
    """The most that it ever had, also while it packs weights and builds a network for the first time."""
    if not native.available() or not Path("/proc/self/status").exists():
        pytest.skip("measured on Linux with the native kernels")
    given = {"model": str(default_model), **options}
    least = in_a_process("peak.py", given | {"memory_budget": "1MiB"})["least_mib"]
    budget = (least + more_mib) << 20
    cache = {"FORERUN_CACHE": str(tmp_path)} if is_first else {}
    found = in_a_process("peak.py", given | {"memory_budget": budget}, **cache)
    assert found["peak"] <= budget, found
    assert found["drafter"] != "none" or not more_mib
