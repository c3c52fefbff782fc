"""Runs MaskBench: compiles its schemas, follows every instance token by token, and times each mask.

    git clone https://github.com/guidance-ai/jsonschemabench
    .venv/bin/python -m dev.suites.json_schema.masks jsonschemabench

An instance is written on one line in the tokens that the tokenizer gives it. Needs no weights, some ten minutes.
Exits 1 if a schema ends in anything but a form or a refusal, or an invalid instance is accepted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from dev.suites.json_schema.reader import Reader, because, version
from forerun.core.config import DEFAULT_MODEL
from forerun.core.errors import RequestError
from forerun.core.structured import StructuredOutputsParams, closed
from forerun.decoding.guidance import Grammars, Guided
from forerun.hub.names import resolve
from forerun.lab.output import markdown_table
from forerun.weights.checkpoint import open_checkpoint

RESULTS = Path(__file__).with_name("masks.md")
COUNTS = (
    "schemas", "refused", "broken", "valid: accepted", "left out by choice", "rejected",
    "invalid: rejected", "a format alone", "accepted", "cut",
)  # fmt: skip
LISTED = ("broken", "accepted", "cut", "rejected")
"""Kinds of outcome whose instances the page names."""
PERCENTILES = (50, 95, 99, 100)
SHOWN = 40
"""Lines of a list on the page."""


@dataclass
class Outcome:
    """What came of a set's schemas."""

    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    found: dict[str, list[str]] = field(default_factory=dict)
    """By kind of outcome that needs a reason, what it was."""

    def add(self, other: Outcome) -> None:
        """Take in what came of another set."""
        self.counts.update(other.counts)
        self.refusals.update(other.refusals)
        self.compile_ms += other.compile_ms
        self.mask_us += other.mask_us
        for kind, lines in other.found.items():
            self.found.setdefault(kind, []).extend(lines)

    def cells(self, name: str) -> list[str]:
        """The line of the table."""
        times = [
            f"{np.percentile(values, part):.{digits}f}" if values else ""
            for values, digits in ((self.compile_ms, 1), (self.mask_us, 0))
            for part in PERCENTILES
        ]
        return [name, *(str(self.counts[one]) for one in COUNTS), *times]


class Masks:
    """Compiles and follows for one vocabulary."""

    def __init__(self, model: str) -> None:
        self._tokenizer = open_checkpoint(resolve(model)).tokenizer()
        size = self._tokenizer.vocab_size
        self._grammars = Grammars(self._tokenizer, size)
        self._reader = Reader(self._tokenizer, size)
        self._grammars.start(StructuredOutputsParams(json_object=True))  # reads the vocabulary

    def follow(self, path: Path, outcome: Outcome) -> None:
        """Compile a file's schema, and judge its instances."""
        given = json.loads(path.read_text())
        outcome.counts["schemas"] += 1
        before = time.perf_counter()
        try:
            form = StructuredOutputsParams(json=given["schema"])
            start = self._grammars.start(form)
        except RequestError as error:
            outcome.counts["refused"] += 1
            outcome.refusals[because(str(error))] += 1
            return
        except Exception as error:
            outcome.counts["broken"] += 1
            outcome.found.setdefault("broken", []).append(f"{path.stem}: {error!r}")
            return
        outcome.compile_ms.append((time.perf_counter() - before) * 1000)
        for test in given["tests"]:
            kind = self._judged(given["schema"], start, test, outcome.mask_us)
            outcome.counts[kind] += 1
            if kind in LISTED:
                said = f"{path.stem}: `{json.dumps(test['data'], ensure_ascii=False)[:160]}`"
                outcome.found.setdefault(kind, []).append(said)

    def _judged(self, schema: Any, start: Any, test: dict[str, Any], times: list[float]) -> str:
        text = json.dumps(test["data"], ensure_ascii=False)
        tokens = self._tokenizer.encode(text, special=False, bos=False)
        try:
            written = self._writes(start, tokens, times)
        except RequestError:
            return "cut"
        kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        if not test["valid"]:
            if not written:
                return "invalid: rejected"
            return "a format alone" if kind(schema).is_valid(test["data"]) else "accepted"
        if written or self._reader.accepts(start, text):
            return "valid: accepted"
        return "rejected" if kind(closed(schema)).is_valid(test["data"]) else "left out by choice"

    def _writes(self, start: Guided, tokens: Sequence[int], times: list[float]) -> bool:
        """Whether the form allows these tokens and then the end. Times masks, in us.

        Raises RequestError at the library's limits.
        """
        state = start
        for token in tokens:
            before = time.perf_counter()
            allowed = state.allowed()
            times.append((time.perf_counter() - before) * 1e6)
            after = state.advance(token) if allowed[token] else None
            if after is None:
                return False
            state = after
        return bool(state.allowed()[[*self._tokenizer.eos_ids]].any())


def main() -> None:
    """Run, write the table, and judge."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("checkout", type=Path, help="the benchmark's repository")
    reader.add_argument("--every", type=int, default=1, help="only each so manieth schema")
    given = reader.parse_args()
    masks = Masks(DEFAULT_MODEL)
    sets: dict[str, Outcome] = {}
    for path in sorted((given.checkout / "maskbench" / "data").glob("*.json"))[:: given.every]:
        name = path.stem.partition("---")[0] if "---" in path.stem else path.stem.split("_")[0]
        masks.follow(path, sets.setdefault(name, Outcome()))
    total = Outcome()
    for outcome in sets.values():
        total.add(outcome)
    RESULTS.write_text("\n".join(_page(sets, total, version(given.checkout))))
    print(f"written to {RESULTS}")
    if total.counts["broken"] or total.counts["accepted"]:
        sys.exit("a schema broke something, or an invalid instance was accepted: see the table")


def _page(sets: dict[str, Outcome], total: Outcome, commit: str) -> Iterator[str]:
    yield "# MaskBench\n"
    yield f"Commit {commit}, SmolLM2's vocabulary. `python -m dev.suites.json_schema.masks CHECKOUT`\n"
    yield "*Left out by choice*: valid, but with properties that the schema does not name and leaves open;"
    yield "we write no such objects (docs/structured-output.md). *Accepted*, of invalid ones: harmful."
    yield "*A format alone*: valid to the package jsonschema, which checks none; unknown ones are annotations here."
    yield "*Rejected*: many have an order of keys that is not the schema's, which is the one that we write."
    yield "*Cut*: the library came to a limit of its own, and the answer would end there."
    yield "Times are percentiles of those compiled, and of all masks along the instances.\n"
    times = [f"{what} p{part}" for what in ("compiled, ms", "mask, µs") for part in PERCENTILES]
    lines = [outcome.cells(name) for name, outcome in [*sets.items(), ("**all**", total)]]
    yield markdown_table(("set", *COUNTS, *times), lines) + "\n"
    for kind in LISTED:
        found = total.found.get(kind, [])
        yield f"## {kind.capitalize()}: {len(found)}\n"
        yield from (f"- {one}" for one in found[:SHOWN])
        yield from [f"- and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        yield ""
    yield f"## Refused in words: {total.refusals.total()}\n"
    rows = [[str(count), one] for one, count in total.refusals.most_common(SHOWN)]
    yield markdown_table(("schemas", "because"), rows) + "\n"


if __name__ == "__main__":
    main()
