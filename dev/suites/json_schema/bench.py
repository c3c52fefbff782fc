"""Answers under schemas of JSONSchemaBench, and writes how many were compiled, refused, finished and valid.

    git clone https://github.com/guidance-ai/jsonschemabench
    .venv/bin/python -m dev.suites.json_schema.bench jsonschemabench

A seeded sample of each of its sets. The default model answers greedily and by sampling (temperature 1, where it ends
more often), with drafts and without: the tokens must be equal, and what ended before the limit must validate with the
package jsonschema. A small model is asked, so the words mean little; an answer cut by the limit says nothing of the
schema. Exits 1 if an answer is invalid, a draft changed a token, or a schema ended in neither a form nor a refusal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import jsonschema

from forerun.core.errors import RequestError, one_line
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.lab.output import markdown_table
from forerun.llm import LLM

RESULTS = Path(__file__).with_name("bench.md")
PLACES = 4
"""Sequences at once."""
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}
BEFORE = ("schemas", "refused", "error", "compiled")
AFTER = ("valid", "unfinished", "invalid")
COLUMNS = (
    "set", *BEFORE, *(f"{way}: {one}" for way in TEMPERATURES for one in AFTER),
    "compiled in ms, median", "p95",
)  # fmt: skip


@dataclass
class Case:
    """A schema and what came of it."""

    path: Path
    schema: Any
    failed: str = ""
    """`refused` or `error`."""
    said: str = ""
    compile_s: float = 0.0
    outcomes: dict[str, str] = field(default_factory=dict)
    """By the way of choosing tokens."""
    invalid: list[str] = field(default_factory=list)
    tokens: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)
    """Of the plain answer and of the drafted one."""

    @property
    def name(self) -> str:
        """Its file in the repository."""
        return f"{self.path.parent.name}/{self.path.name}"


def sample(data: Path, count: int, seed: int) -> list[Case]:
    """The same schemas for the same seed."""
    cases = []
    for folder in sorted(one for one in data.iterdir() if one.is_dir()):
        paths = sorted(folder.glob("*.json"))
        for path in random.Random(f"{seed} {folder.name}").sample(paths, min(count, len(paths))):
            cases.append(Case(path, json.loads(path.read_text())))
    return cases


def compile_all(llm: LLM, cases: list[Case]) -> None:
    """Compile each alone, and time it."""
    llm.grammars.start(StructuredOutputsParams(json_object=True))  # reads the vocabulary
    for case in cases:
        before = time.perf_counter()
        try:
            llm.grammars.start(StructuredOutputsParams(json=case.schema))
        except RequestError as error:
            case.failed, case.said = "refused", one_line(str(error))
        except Exception as error:
            case.failed, case.said = "error", repr(error)
        case.compile_s = time.perf_counter() - before


def answer(llm: LLM, cases: list[Case], way: str, max_tokens: int) -> None:
    """Answer under each schema that could be compiled, and judge what ended."""
    for start in range(0, len(cases), PLACES):
        group = cases[start : start + PLACES]
        params = [
            SamplingParams(
                temperature=TEMPERATURES[way],
                seed=1,
                max_tokens=max_tokens,
                structured_outputs=StructuredOutputsParams(json=case.schema),
            )
            for case in group
        ]
        for case, given in zip(group, llm.chat([*map(_question, group)], params), strict=True):
            (output,) = given.outputs
            case.tokens.setdefault(way, set()).add(output.token_ids)
            case.outcomes[way] = "unfinished"
            if output.finish_reason == "stop":
                wrong = _wrong(output.text, case.schema)
                case.outcomes[way] = "invalid" if wrong else "valid"
                case.invalid += [wrong] if wrong else []


def _question(case: Case) -> list[dict[str, str]]:
    about = case.schema.get("description") or case.schema.get("title") or ""
    return [{"role": "user", "content": f"Give one short example as JSON. {about}"[:400].strip()}]


def _wrong(text: str, schema: Any) -> str:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{one_line(str(error))[:200]}: `{text[:200]}`"
    return ""


def main() -> None:
    """Run, write the table, and judge."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("checkout", type=Path, help="the benchmark's repository")
    reader.add_argument("--count", type=int, default=15, help="schemas of each set")
    reader.add_argument("--max-tokens", type=int, default=192)
    reader.add_argument("--seed", type=int, default=24)
    given = reader.parse_args()
    drafting = LLM(max_model_len=1024, max_num_seqs=PLACES)
    cases = sample(given.checkout / "data", given.count, given.seed)
    compile_all(drafting, cases)
    compiled = [case for case in cases if not case.failed]
    for llm in (drafting.with_drafter("none"), drafting):
        for way in TEMPERATURES:
            answer(llm, compiled, way, given.max_tokens)
    RESULTS.write_text("\n".join(_page(cases, given.max_tokens, given.seed)))
    print(f"written to {RESULTS}")
    if any(case.failed == "error" or case.invalid or _differs(case) for case in cases):
        sys.exit("an answer is invalid or differs, or a schema broke something: see the table")


def _differs(case: Case) -> bool:
    return any(len(different) > 1 for different in case.tokens.values())


def _page(cases: list[Case], max_tokens: int, seed: int) -> Iterator[str]:
    yield "# JSONSchemaBench\n"
    yield (
        f"A sample of {len(cases)} schemas (seed {seed}), {max_tokens} tokens at most, SmolLM2-135M-Instruct, "
        "drafter auto. `python -m dev.suites.json_schema.bench CHECKOUT`\n"
    )
    sets: dict[str, list[Case]] = {}
    for case in cases:
        sets.setdefault(case.path.parent.name, []).append(case)
    yield (
        markdown_table(COLUMNS, [_line(*one) for one in [*sets.items(), ("**all**", cases)]]) + "\n"
    )
    whole = sum("valid" in case.outcomes.values() for case in cases)
    answers = [one for case in cases for one in case.tokens.values()]
    yield f"- Coverage: {whole} of {len(cases)} schemas have a whole valid answer; the others were refused, or the"
    yield "  small model did not end in time. *Unfinished* is cut by the limit of tokens."
    yield f"- Drafted answers whose tokens differ from plain decoding's: {sum(len(one) > 1 for one in answers)} of"
    yield f"  {len(answers)}."
    for name in ("error", "refused"):
        found = [case for case in cases if case.failed == name]
        yield f"\n## {name.capitalize()}: {len(found)}\n"
        yield from (f"- {case.name}: {case.said}" for case in found)
    wrong = [f"- {case.name}: {one}" for case in cases for one in case.invalid]
    yield f"\n## Invalid: {len(wrong)}\n"
    yield from wrong
    yield ""


def _line(name: str, cases: list[Case]) -> list[str]:
    count = Counter(case.failed for case in cases)
    times = [case.compile_s * 1000 for case in cases if not case.failed]
    p95 = quantiles(times, n=20)[-1] if len(times) > 1 else sum(times)
    spent = [f"{median(times):.1f}", f"{p95:.1f}"] if times else ["", ""]
    before = (len(cases), count["refused"], count["error"], count[""])
    after = Counter((way, one) for case in cases for way, one in case.outcomes.items())
    counts = [*before, *(after[way, one] for way in TEMPERATURES for one in AFTER)]
    return [name, *map(str, counts), *spent]


if __name__ == "__main__":
    main()
