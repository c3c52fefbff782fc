"""Answers are made once each, by every temperature, whatever interrupts; what does not fit is passed over."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import pytest

from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import TaskPrompt
from forerun.drafters import recycling
from forerun.drafters.base.contract import Target
from forerun.engine.loop import EngineLoop
from forerun.lab.store import Store, read
from forerun.lab.train import answers
from forerun.lab.train.answers import answers_in, generate
from tests.engine.harness import engine_for, plain
from tests.tiny import tiny_model

ORIGIN = {"model": "tiny"}
PROMPTS = [TaskPrompt(f"p{i}", "all", ("ab" * (i + 1),)) for i in range(6)]


def encode(conversation) -> list[int]:
    parts = (
        [ord(x) % 17 for x in message] if isinstance(message, str) else message
        for message in conversation
    )
    return [*chain.from_iterable(parts)]


@pytest.fixture
def loop(monkeypatch) -> EngineLoop:
    monkeypatch.setattr(answers, "MAX_TOKENS", 12)
    model = tiny_model(3, sharpness=3.0)
    drafter = recycling.build(recycling.Options(table="none"), Target(model, None, 2, 64))
    return EngineLoop(engine_for(model, drafter, max_num_seqs=2, max_len=64))


def rounds(results) -> Counter[str]:
    return Counter(key.partition("/")[2] for key in results)


def test_every_prompt_is_answered_in_every_round_by_the_model_itself(loop, tmp_path) -> None:
    store = Store(ORIGIN, tmp_path / "a.jsonl")
    counts = [*generate(loop, encode, PROMPTS, store, 12 * 6 * 4 - 6)]
    assert counts[0] == 0
    assert all(a <= b for a, b in pairwise(counts))
    assert counts[-1] == sum(len(tokens) for _, tokens in answers_in(store)) >= 12 * 6 * 4 - 6
    whole = {key for key in store.results if not key.endswith("/4")}
    assert whole >= {f"{p.id}/{r}" for p in PROMPTS for r in range(3)}
    for prompt in PROMPTS:
        rows = [(k, r) for k, r in store.results.items() if k.startswith(f"{prompt.id}/")]
        temperatures = [row["temperature"] for _, row in rows]
        assert temperatures.count(0.0) == 1
        assert {*temperatures} == {0.0, *answers.SAMPLED}
        assert len({tuple(row["answer"]) for _, row in rows}) > 1
        ids = encode(prompt.turns)
        (greedy,) = [r for _, r in rows if r["temperature"] == 0.0]
        params = SamplingParams(temperature=0, max_tokens=12)
        assert [list(greedy["answer"])] == plain(loop.engine.model, [ids], params)
        assert all([*row["prompt"]] == ids for _, row in rows)
    assert 2 <= sum(store.results[f"{p.id}/0"]["temperature"] == 0 for p in PROMPTS) <= 4


def test_an_interrupted_run_goes_on_and_asks_nothing_twice(loop, tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    whole = Store(ORIGIN)
    [*generate(loop, encode, PROMPTS, whole, 12 * 6 * 2)]

    running = generate(loop, encode, PROMPTS, Store(ORIGIN, path), 12 * 6 * 2)
    while next(running) < 40:
        pass
    running.close()  # as Ctrl-C does
    assert not loop.engine.has_work
    with path.open("a") as file:
        file.write('{"key": "p5/0", "temperature": 0.0, "pro')  # a torn line
    before = {**read(path)[1]}
    assert 3 <= len(before) < 12

    store = Store(ORIGIN, path)
    counts = [*generate(loop, encode, PROMPTS, store, 12 * 6 * 2)]
    assert counts[0] == sum(len(row["answer"]) for row in before.values())
    keys = [line.split('"')[3] for line in path.read_text().splitlines()[1:]]
    assert len(keys) == len({*keys})
    assert rounds(keys)["0"] == rounds(keys)["1"] == 6
    for key, row in before.items():
        assert [*whole.results[key]["answer"]] == row["answer"]
    assert [*generate(loop, encode, PROMPTS, store, 12 * 6 * 2)] == [counts[-1]]  # all is there


@pytest.mark.parametrize("stop_after", [None, 20])
def test_a_later_turn_is_asked_after_the_models_own_answers(loop, tmp_path, stop_after) -> None:
    prompts = [TaskPrompt(f"a/p{i}", "ab"[i], ("ab", "c" * (i + 1), "de")[: i + 2]) for i in (0, 1)]
    store = Store(ORIGIN, tmp_path / "a.jsonl")
    for done in generate(loop, encode, prompts, store, 12 * 5 * 8):
        if stop_after is not None and done >= stop_after:
            break
    if stop_after is not None:
        assert 0 < len(store.results) < 12
        [*generate(loop, encode, prompts, store, 12 * 5 * 8)]
    lengths = {prompt.id: len(prompt.turns) for prompt in prompts}
    for prompt in prompts:
        for round_ in (0, 1):
            keys = [f"{prompt.id}/{round_}", f"{prompt.id}/{round_}.1", f"{prompt.id}/{round_}.2"]
            rows = [store.results[key] for key in keys[: lengths[prompt.id]]]
            assert len({row["temperature"] for row in rows}) == 1
            conversations: list[object] = []
            for text, row in zip(prompt.turns, rows, strict=True):
                assert [*row["prompt"]] == encode([*conversations, text])
                conversations += [text, [*row["answer"]]]
                assert row["category"] == prompt.category
    assert {reply.rpartition("/")[0] for reply in store.results} == {*lengths}


def test_a_turn_that_leaves_no_room_ends_its_conversation(loop) -> None:
    store = Store(ORIGIN)
    prompts = [TaskPrompt("p", "all", ("ab", "x" * 64, "c"))]
    [*generate(loop, encode, prompts, store, 30)]
    assert len(store.results) >= 3
    assert {*store.results} <= {f"p/{round_}" for round_ in range(9)}, "no second turn"


def test_prompts_that_leave_no_room_are_passed_over(loop) -> None:
    store = Store(ORIGIN)
    long = TaskPrompt("long", "all", ("x" * 64,))
    [*generate(loop, encode, [long, PROMPTS[0]], store, 24)]
    assert {key.partition("/")[0] for key in store.results} == {"p0"}
    assert [*generate(loop, encode, [long], Store(ORIGIN), 24)] == [0]


def test_a_row_that_is_no_answer_is_an_error(tmp_path: Path) -> None:
    store = Store(ORIGIN, tmp_path / "a.jsonl")
    store.add("a/0", {"prompt": [1], "answer": [2, 3], "temperature": 0.0})
    assert [*answers_in(store)] == [((1,), (2, 3))]
    store.add("b/0", {"text": "hello"})
    with pytest.raises(ConfigError, match=r"a\.jsonl: 'b/0' is not an answer"):
        [*answers_in(store)]
