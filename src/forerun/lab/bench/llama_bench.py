"""llama-bench's two figures: how fast prompts of some lengths are read, and tokens written from an empty cache."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any

from forerun.core import sizes
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.lab.bench.kernels import Timer, in_turns
from forerun.llm import LLM
from forerun.model.shapes import weight_shapes

COLUMNS = (
    *(("model", 30, False), ("size", 10, True), ("params", 10, True), ("backend", 10, False)),
    *(("threads", 7, True), ("test", 13, True), ("t/s", 20, True)),
)
"""Names, widths, and whether they are aligned to the right."""


def lengths(given: str) -> list[int]:
    """Read `512,1024`; 0 asks for no prompt. Raises ConfigError."""
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--n-prompt must be lengths such as 512,1024, got {given!r}")
    return [int(part) for part in parts if int(part)]


def measure(llm: LLM, prompts: Sequence[int], num_tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Time each test in turns, after one round to warm up: its name, mean and deviation of tokens per second."""
    tests: dict[str, tuple[int, Timer]] = {
        f"pp{length}": (length, partial(_run, llm, length, 1)) for length in prompts
    }
    if num_tokens > 1:
        tests[f"tg{num_tokens}"] = num_tokens - 1, partial(_run, llm, 1, num_tokens)
    *_, seconds = in_turns({name: timer for name, (_, timer) in tests.items()}, rounds)
    rows = []
    for name, (count, _) in tests.items():
        speeds = [count / each for each in seconds[name]]
        deviation = stdev(speeds) if rounds > 1 else 0.0
        rows.append({"test": name, "tok_s": fmean(speeds), "stdev": deviation})
    return rows


def _run(llm: LLM, num_prompt: int, num_tokens: int) -> float:
    """Return the seconds to the first token after random ones, or of several tokens those after the first."""
    ids = random.choices(range(llm.tokenizer.vocab_size), k=num_prompt)
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
    request = llm.submit({"prompt_token_ids": ids}, params)
    request.wait()
    first_s = request.runs[0].first_token_s
    assert first_s is not None
    start_s = request.runs[0].start_s
    return first_s - start_s if num_tokens == 1 else time.perf_counter() - first_s


def markdown(llm: LLM, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write the table as llama-bench does."""
    params = sum(map(math.prod, weight_shapes(llm.model.config).values())) / 1e6
    files = [*llm.path.glob("*.safetensors")] if llm.path.is_dir() else [llm.path]
    nbytes = sum(file.stat().st_size for file in files)
    fixed = (llm.path.stem, sizes.mebibytes(nbytes), f"{params:.2f} M", llm.device.upper())
    lines = [
        (
            *fixed,
            str(llm.model.num_threads),
            row["test"],
            f"{row['tok_s']:.2f} ± {row['stdev']:.2f}",
        )
        for row in rows
    ]
    rule = ["-" * (width - right) + ":" * right for _, width, right in COLUMNS]
    table = [[name for name, _, _ in COLUMNS], rule, *lines]
    return "\n".join(f"| {' | '.join(map(_cell, line, COLUMNS))} |" for line in table)


def _cell(text: str, column: tuple[str, int, bool]) -> str:
    _, width, is_right = column
    return text.rjust(width) if is_right else text.ljust(width)
