"""Threads, signals and files against one LLM for a while: nothing is lost, nothing is left, nothing hangs.

    python -m tests.engine.stress MODEL [SECONDS]

MODEL is a GGUF file of a small model. Each program returns what it counted, and raises AssertionError at the first
thing that is wrong.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from forerun import LLM, SamplingParams
from forerun.core.types import Event

PROMPTS = ["one two one two one two", "three", "four five", "six six six"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=k, ignore_eos=True) for k in (1, 6, 7, 9, 14, 40)
]
WAIT_S = 60


def until(seconds: float) -> Iterator[int]:
    """Count up while there is time."""
    end_s, count = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        yield count
        count += 1


def new_llm(model: Path) -> LLM:
    """It drafts in every step."""
    return LLM(str(model), drafter="recycling", controller=False, threads=1, max_num_seqs=4)


def expected(llm: LLM) -> dict[tuple[str, int], tuple[int, ...]]:
    plain = llm.with_drafter("none")
    pairs = [(prompt, params) for prompt in PROMPTS for params in PARAMS]
    outputs = plain.generate([prompt for prompt, _ in pairs], [params for _, params in pairs])
    return {
        (prompt, params.max_tokens or 0): output.outputs[0].token_ids
        for (prompt, params), output in zip(pairs, outputs, strict=True)
    }


def check_idle(llm: LLM) -> None:
    """Nothing is left once a step was taken."""
    assert not llm.loop.step()
    assert not llm.engine.sequences
    assert not llm.engine.scheduler.running


def check_drafted(llm: LLM, found: Counter[str]) -> Counter[str]:
    stats = llm.engine.stats
    assert 0 < stats.accepted < stats.drafted
    return found


def streams(model: Path, seconds: float) -> Counter[str]:
    """Threads read a stream each, at their own pace; some leave early, before the first event, or just drop it."""
    llm, found = new_llm(model), Counter[str]()
    answers = expected(llm)

    def reader(seed: int) -> None:
        rng = random.Random(seed)
        for _ in until(seconds):
            prompt, params = rng.choice(PROMPTS), rng.choice(PARAMS)
            stream = llm.stream(prompt, params)
            kind = rng.choice(("read", "read", "read", "closed", "dropped", "left"))
            found[kind] += 1
            if kind == "closed":
                stream.close()
            if kind in ("closed", "dropped"):
                continue
            events: list[Event] = []
            for event in stream:
                events.append(event)
                time.sleep(rng.random() * 0.004 * (rng.random() < 0.5))
                if kind == "left" and rng.random() < 0.2:
                    break
            tokens = tuple(token for event in events for token in event.token_ids)
            answer = answers[prompt, params.max_tokens or 0]
            assert tokens == answer[: len(tokens)]
            if kind == "read":
                assert tokens == answer
                assert events[-1].finish_reason == "length"

    run_together(reader, 5, seconds)
    check_idle(llm)
    return check_drafted(llm, found)


def sinks(model: Path, seconds: float) -> Counter[str]:
    """Sinks raise all kinds of errors; the other requests lose nothing."""
    llm, found, rng = new_llm(model), Counter[str](), random.Random(1)
    answers = expected(llm)
    kinds = (ValueError, CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)

    def raising(at: int, kind: type[BaseException]) -> Callable[[Event], None]:
        left = iter(range(at))

        def sink(event: Event) -> None:
            if next(left, None) is None:
                raise kind

        return sink

    for _ in until(seconds):
        kept: list[tuple[str, int, list[Event]]] = []
        for _ in range(rng.randrange(1, 8)):
            prompt, params = rng.choice(PROMPTS), rng.choice(PARAMS)
            if rng.random() < 0.4:
                kind = rng.choice(kinds)
                found[kind.__name__] += 1
                llm.submit(prompt, params, raising(rng.randrange(4), kind))
            else:
                events: list[Event] = []
                kept.append((prompt, params.max_tokens or 0, events))
                llm.submit(prompt, params, events.append)
        while llm.engine.has_work:
            try:
                llm.loop.step()
            except (KeyboardInterrupt, SystemExit) as error:
                found[f"raised {type(error).__name__}"] += 1
        for prompt, length, events in kept:
            assert tuple(t for event in events for t in event.token_ids) == answers[prompt, length]
            assert [event.finish_reason for event in events][-1] == "length"
        check_idle(llm)
    return check_drafted(llm, found)


def signals(model: Path, seconds: float) -> Counter[str]:
    """A handler raises at random moments while this thread and others answer."""
    llm, found, rng = new_llm(model), Counter[str](), random.Random(2)
    answers = expected(llm)
    is_over = threading.Event()

    class TimeLimit(Exception):
        pass

    def neighbour(number: int) -> None:
        while not is_over.is_set():
            (output,) = llm.generate(PROMPTS[number], PARAMS[-1])
            assert output.outputs[0].token_ids == answers[PROMPTS[number], 40]
            found["neighbour"] += 1

    def limit(*_: object) -> None:
        raise TimeLimit

    with ThreadPoolExecutor(2) as pool, handling(signal.SIGALRM, limit):
        neighbours = [pool.submit(neighbour, number) for number in (0, 1)]
        try:
            for _ in until(seconds):
                prompts = rng.sample(PROMPTS, 2)
                params = rng.choice(PARAMS)
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.random() * 0.02 + 1e-5)
                    if rng.random() < 0.5:
                        outputs = [o.outputs[0].token_ids for o in llm.generate(prompts, params)]
                    else:
                        stream = llm.stream(prompts[0], params)
                        outputs = [tuple(t for event in stream for t in event.token_ids)]
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except TimeLimit:
                    found["limited"] += 1
                else:
                    found["answered"] += 1
                    for prompt, tokens in zip(prompts, outputs, strict=False):
                        assert tokens == answers[prompt, params.max_tokens or 0]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            is_over.set()
        for each in neighbours:
            each.result(WAIT_S)
    check_idle(llm)
    return check_drafted(llm, found)


def files(model: Path, seconds: float, folder: Path) -> Counter[str]:
    """Weights are replaced by others of the same size and time between starts: each start answers with its own."""
    found, copies = Counter[str](), []
    for number in range(3):
        data, turn = model.read_bytes(), 1024 * number
        data = data[:-4096] + data[-4096:][turn:] + data[-4096:][:turn]  # of the last tensor
        copies.append(folder / f"{number}.gguf")
        copies[-1].write_bytes(data)
    place = folder / "model.gguf"

    def answer() -> object:
        llm = LLM(str(place), drafter="none", threads=1, max_model_len=64, prompt_cache="auto")
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
        return llm.generate(PROMPTS[0], params)[0].outputs[0].logprobs

    own = {}
    for copy in copies:
        shutil.copyfile(copy, place)
        own[copy] = answer()
    assert len({*map(repr, own.values())}) == len(copies)
    rng = random.Random(3)
    for _ in until(seconds):
        copy = rng.choice(copies)
        if rng.random() < 0.5:
            shutil.copyfile(copy, place)
        else:
            shutil.copyfile(copy, folder / "new")
            os.replace(folder / "new", place)
        os.utime(place, (1, 1))
        assert answer() == own[copy]
        assert answer() == own[copy]
        found["starts"] += 2
    return found


def run_together(work: Callable[[int], None], count: int, seconds: float) -> None:
    with ThreadPoolExecutor(count) as pool:
        for each in [pool.submit(work, number) for number in range(count)]:
            each.result(seconds + WAIT_S)


@contextmanager
def handling(number: int, handler: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


if __name__ == "__main__":
    path, length = Path(sys.argv[1]), float((*sys.argv[2:], 300)[0])
    for program in (streams, sinks, signals):
        print(program.__name__, dict(program(path, length)), flush=True)
