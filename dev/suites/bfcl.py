"""Asks Berkeley's function-calling questions of `forerun serve` with and without drafts, and judges by its checker.

    .venv/bin/python -m dev.suites.bfcl                    # fetches bfcl-eval with pip
    .venv/bin/python -m dev.suites.bfcl --model FILE.gguf --count 40

The first questions of each category, by openai-python with tools and `tool_choice: auto`, greedily; the server's
drafter or none, request by request. Names and types of tools are written as the leaderboard writes them for OpenAI's
API. Exits 1 if an answer differs by a draft, or if drafts were not made, accepted and rejected.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import types
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from dev.suites.serving import drafted, served
from forerun.lab.output import markdown_table

PACKAGE, VERSION = "bfcl-eval", "2026.3.23"
CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
NO_CALL = "irrelevance"
"""The category whose right answer is text."""
WAYS = ("drafts", "none")
RESULTS = Path(__file__).with_name("bfcl.md")
SHOWN = 12
"""Misses of a category that the page shows."""


@dataclass
class Case:
    """A question, its tools, and by way of answering what came of it."""

    category: str
    row: dict[str, Any]
    truth: list[Any]
    messages: dict[str, Any] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    """By way, the checker's kind of miss; empty if right."""


def main() -> None:
    """Ask, judge, and write the table."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--model", required=True, help="as `forerun serve` takes it")
    reader.add_argument("--count", type=int, default=40, help="questions of each category")
    reader.add_argument("--max-tokens", type=int, default=256)
    reader.add_argument("--work", type=Path, default=Path("build/bfcl"))
    given = reader.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    wheel = _fetch(given.work)
    cases = [case for category in CATEGORIES for case in _cases(wheel, category, given.count)]
    check = _checker(wheel)
    with served(given.model, given.work / "server.log") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=600)
        for case in cases:
            for way in WAYS:
                answer = _ask(client, case, way, given.max_tokens)
                case.messages[way], case.missed[way] = answer, _miss(check, case, answer)
        counts = drafted(url)
    RESULTS.write_text("\n".join(_page(cases, counts, Path(given.model).stem)))
    print(f"written to {RESULTS}")
    differ = sum(case.messages["drafts"] != case.messages["none"] for case in cases)
    if differ or not 0 < counts["accepted"] < counts["drafted"]:
        sys.exit("an answer differs, or drafts were not made, accepted and rejected: see the table")


def _fetch(work: Path) -> Path:
    if not (found := [*work.glob("bfcl_eval-*.whl")]):
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(work)]
        subprocess.run([*pip, f"{PACKAGE}=={VERSION}"], check=True)
        found = [*work.glob("bfcl_eval-*.whl")]
    return found[0]


def _cases(wheel: Path, category: str, count: int) -> Iterator[Case]:
    with zipfile.ZipFile(wheel) as archive:
        name = f"BFCL_v4_{category}.json"
        rows = archive.read(f"bfcl_eval/data/{name}").decode().splitlines()[:count]
        truths: list[Any] = [None] * count
        if category != NO_CALL:
            truths = archive.read(f"bfcl_eval/data/possible_answer/{name}").decode().splitlines()
    for row, truth in zip(map(json.loads, rows), truths, strict=False):
        yield Case(category, row, json.loads(truth)["ground_truth"] if truth else [])


def _checker(wheel: Path) -> Any:
    """The package's own checker, without its table of models, which imports every provider's client."""
    sys.path.insert(0, str(wheel))
    for name in ("java", "js"):
        module = f"bfcl_eval.eval_checker.ast_eval.type_convertor.{name}_type_converter"
        sys.modules[module] = types.ModuleType(module)
        setattr(sys.modules[module], f"{name}_type_converter", None)
    models: Any = types.ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = defaultdict(lambda: types.SimpleNamespace(underscore_to_dot=True))
    sys.modules[models.__name__] = models
    from bfcl_eval.constants.enums import Language  # type: ignore[import-not-found]
    from bfcl_eval.eval_checker.ast_eval.ast_checker import (  # type: ignore[import-not-found]
        ast_checker,
    )

    def check(case: Case, calls: list[dict[str, Any]]) -> dict[str, Any]:
        functions = case.row["function"]
        judged = ast_checker(functions, calls, case.truth, Language.PYTHON, case.category, "any")
        return dict(judged)

    return check


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    own = {**function, "name": function["name"].replace(".", "_")}
    own["parameters"] = _schema(function["parameters"])
    return {"type": "function", "function": own}


def _schema(given: Any) -> Any:
    """The benchmark's names of types as JSON Schema has them."""
    if isinstance(given, list):
        return [*map(_schema, given)]
    if not isinstance(given, dict):
        return given
    names = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
    own = {key: _schema(value) for key, value in given.items()}
    if isinstance(kind := given.get("type"), str):
        own["type"] = names.get(kind, kind)
    return own


def _ask(client: openai.OpenAI, case: Case, way: str, max_tokens: int) -> Any:
    answer = client.chat.completions.create(
        model="any",
        messages=case.row["question"][0],
        tools=[*map(_tool, case.row["function"])],  # type: ignore[arg-type]
        temperature=0,
        max_tokens=max_tokens,
        extra_body={"speculative": {"drafter": "none"}} if way == "none" else {},
    )
    choice = answer.choices[0]
    calls = [(one.function.name, one.function.arguments) for one in choice.message.tool_calls or []]  # type: ignore[union-attr]
    return {
        "text": choice.message.content or "",
        "calls": calls,
        "finish_reason": choice.finish_reason,
    }


def _miss(check: Any, case: Case, answer: dict[str, Any]) -> str:
    calls = answer["calls"]
    if case.category == NO_CALL:
        return "a call where none fits" if calls else ""
    if not calls:
        return "cut by the limit" if answer["finish_reason"] == "length" else "text, no call"
    judged = check(case, [{name: json.loads(arguments)} for name, arguments in calls])
    return "" if judged["valid"] else str(judged["error_type"])


def _page(cases: list[Case], counts: dict[str, float], model: str) -> Iterator[str]:
    yield "# Berkeley's function calling\n"
    yield f"{PACKAGE} {VERSION}, its checker, {model}, greedily. `python -m dev.suites.bfcl --model FILE`\n"
    columns = ("category", "questions", *(f"score, {way}" for way in WAYS), "answers that differ")
    lines = []
    for category in (*CATEGORIES, "**all**"):
        own = [case for case in cases if category in (case.category, "**all**")]
        scores = [repr(sum(not case.missed[way] for case in own) / len(own)) for way in WAYS]
        differ = sum(case.messages["drafts"] != case.messages["none"] for case in own)
        lines.append([category, str(len(own)), *scores, str(differ)])
    yield markdown_table(columns, lines) + "\n"
    yield ", ".join(f"{name} {count:.0f}" for name, count in counts.items()) + " tokens.\n"
    yield "## Misses\n"
    kinds = Counter((case.category, case.missed["none"]) for case in cases if case.missed["none"])
    rows = [[*kind, str(count)] for kind, count in sorted(kinds.items())]
    yield markdown_table(("category", "kind", "questions"), rows) + "\n"
    for category in CATEGORIES:
        missed = [case for case in cases if case.category == category and case.missed["none"]]
        for case in missed[:SHOWN]:
            said = case.messages["none"]
            seen = re.sub(r"\s+", " ", json.dumps(said["calls"] or said["text"]))[:160]
            yield f"- {case.row['id']}: {case.missed['none']}: `{seen.replace('`', chr(39))}`"
    yield ""


if __name__ == "__main__":
    main()
