"""What strangers choose as a grammar is bounded in time and memory, and what is honest is compiled as ever."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from forerun.core.errors import RequestError
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding import mask_clock
from forerun.decoding.guidance import Grammars
from forerun.decoding.mask_clock import MASK_S, PATIENCE_S, MaskClock, MaskThread
from forerun.system.device import resident_nbytes
from forerun.text.tokenizer import Tokenizer
from forerun.weights.checkpoint import open_checkpoint
from tests.decoding.test_gbnf import DOCUMENT, GAME, PROGRAM, SUM
from tests.decoding.test_guidance import FORMS

pytest.importorskip("llguidance", reason="structured output needs llguidance")
HUGE = 10**307
ATTACKS = {
    "dots": {"grammar": "root ::= " + ".* " * 60 + 'root | "z"'},
    "expressions": {
        "grammar": "start: X\nX: " + " & ".join(f"/.*a.{{{i}}}b.*/" for i in range(60))
    },
    "alternatives": {
        "grammar": "root ::= "
        + "|".join(f"r{i} root" for i in range(1000))
        + '|"q"\n'
        + "\n".join(f"r{i} ::= [a-z]* " for i in range(1000))
    },
    "multiples": {
        "json": {"type": "integer", "multipleOf": 999983, "minimum": 0, "maximum": 10**15}
    },
    "parts": {
        "json": {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}{k}": {"const": i}}} for i in range(4)]}
                for k in range(9)
            ]
        }
    },
    "rules": {
        "grammar": "start: "
        + " | ".join(f"r{i}" for i in range(3000))
        + "".join(f'\nr{i}: "a"? r{i * 7 % 3000}? r{i * 13 % 3000}?' for i in range(3000))
    },
}
HONEST = {
    **FORMS,
    "sum": StructuredOutputsParams(grammar=SUM),
    "document": StructuredOutputsParams(grammar=DOCUMENT),
    "game": StructuredOutputsParams(grammar=GAME),
    "program": StructuredOutputsParams(grammar=PROGRAM),
    "control token": StructuredOutputsParams(grammar='root ::= <|im_start|> "x" | <[7]>'),
    "behind a mark": StructuredOutputsParams(regex="[a-z]+", after="</think>", max_before=9),
    "long texts": StructuredOutputsParams(
        json={"properties": {f"t{i}": {"type": "string", "maxLength": 4000} for i in range(9)}}
    ),
    "properties": StructuredOutputsParams(
        json={"properties": {f"name_{i}": {"type": "string"} for i in range(400)}}
    ),
    "words": StructuredOutputsParams(json={"enum": [f"word {i}" for i in range(4000)]}),
}


@pytest.fixture(scope="module")
def tokenizer(default_model) -> Tokenizer:
    return open_checkpoint(default_model).tokenizer()


@pytest.fixture(scope="module")
def guarded(tokenizer) -> Iterator[Grammars]:
    made = Grammars(tokenizer, tokenizer.vocab_size, are_strangers=True)
    made.start(FORMS["regex"])  # the vocabulary is read
    yield made
    made.close()


def resident_mb() -> float:
    gc.collect()
    return resident_nbytes() / 1e6


@pytest.mark.parametrize("name", HONEST)
def test_what_is_honest_is_compiled_at_once(name: str, guarded: Grammars) -> None:
    start_s = time.monotonic()
    state = guarded.start(HONEST[name])
    assert state.allowed() is not None
    assert time.monotonic() - start_s < 3


@pytest.mark.parametrize("name", ATTACKS)
def test_what_takes_too_much_is_refused_in_time(name: str, guarded: Grammars) -> None:
    """The next one is compiled."""
    start_s, before_mb = time.monotonic(), resident_mb()
    with pytest.raises(RequestError, match="cannot be used") as error:
        guarded.start(StructuredOutputsParams.read(ATTACKS[name]))
    assert "\n" not in str(error.value)
    assert time.monotonic() - start_s < 8
    assert resident_mb() - before_mb < 40
    guarded.start(StructuredOutputsParams(regex=f"{name}[0-9]+"))


def test_what_nobody_waits_for_is_given_up(guarded: Grammars) -> None:
    waiting = [
        guarded.begin(
            StructuredOutputsParams(grammar=f'{ATTACKS["alternatives"]["grammar"]}|"{i}"')
        )
        for i in range(8)
    ]
    time.sleep(0.3)
    start_s = time.monotonic()
    del waiting
    guarded.start(StructuredOutputsParams(regex="given up"))
    assert time.monotonic() - start_s < 4


def test_closing_ends_what_is_compiled(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer, tokenizer.vocab_size, are_strangers=True)
    state = grammars.begin(StructuredOutputsParams.read(ATTACKS["alternatives"]))
    time.sleep(0.5)
    start_s = time.monotonic()
    grammars.close()
    with pytest.raises(RequestError):
        state.allowed()
    assert time.monotonic() - start_s < 2


def busy(seconds: float) -> Callable[[], str]:
    def work() -> str:
        end_s = time.thread_time() + seconds
        while time.thread_time() < end_s:
            pass
        return "found"

    return work


def test_masks_that_are_slow_again_and_again_end_a_request() -> None:
    thread = MaskThread()
    clock = MaskClock(thread)
    for _ in range(20):
        assert clock.run(busy(0.001)) == "found"
    slow = [busy(MASK_S + 0.04)] * 8
    with pytest.raises(RequestError, match="more than 50 ms again and again"):
        print(*map(clock.run, slow))
    assert MaskClock(thread).run(busy(MASK_S + 0.04)) == "found"


def test_a_mask_that_does_not_end_is_left_alone() -> None:
    thread, ends = MaskThread(), threading.Event()

    def endless() -> None:
        while not ends.is_set():
            pass

    with pytest.raises(RequestError, match="too complex in mid-answer"):
        MaskClock(thread).run(endless)
    assert thread.num_lost == 1
    assert MaskClock(thread).run(busy(0.001)) == "found"
    ends.set()
    while thread.num_lost:
        time.sleep(0.05)


def test_a_mask_that_waits_for_a_processor_is_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(mask_clock, "MASK_S", 0.02)
    assert MaskClock(MaskThread()).run(lambda: time.sleep(PATIENCE_S + 0.3) or "found") == "found"


def test_its_thread_ends_with_it() -> None:
    thread = MaskThread()
    own = thread._thread
    assert own.is_alive()
    del thread
    own.join(5)
    assert not own.is_alive()


@pytest.mark.parametrize("are_strangers", [True, False])
def test_a_grammar_on_which_the_library_crashes_is_refused(
    are_strangers: bool, tokenizer: Tokenizer
) -> None:
    grammars = Grammars(tokenizer, tokenizer.vocab_size, are_strangers=are_strangers)
    with pytest.raises(RequestError, match="the process of the grammar crashed"):
        grammars.start(StructuredOutputsParams(grammar=f'start: %json {{"const": {-(2**63)}}}'))
    assert grammars.start(FORMS["regex"]).allowed().any()
    grammars.close()
