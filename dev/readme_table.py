"""The tables of speeds, from measurements: `python -m dev.readme_table` writes them, `--check` compares.

README.md has one table, by kind of work, between `<!-- work: FOLDER -->` and `<!-- /work -->`. benchmarks/README.md has
all systems of a run between `<!-- speeds: FILE -->` and `<!-- /speeds -->`, and where rows are free every method's
speed-up between `<!-- devices: FILE -->` and `<!-- /devices -->`, as docs/methods.md has it (`dev.device_table`).
Other FILEs, and the files in FOLDER, are what `forerun bench --out` wrote; paths are relative to the page. To show
another run, change the path there.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from dev import device_table
from dev.markdown import wrapped
from forerun.drafters.base.parse import AUTO_CHOICE
from forerun.lab.bench import measurement, summary
from forerun.lab.bench.summary import ALL, Row
from forerun.lab.output import markdown_table, number

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = (README, ROOT / "benchmarks" / "README.md", ROOT / "docs" / "methods.md")
DEFAULTS = (f"mlp_speculator++{AUTO_CHOICE}", AUTO_CHOICE)
"""The default drafter of a model that a network ships for, and of others."""
BLOCK = re.compile(
    r"(<!-- (?P<kind>speeds|work|devices): (?P<path>\S+) -->\n).*?(<!-- /(?P=kind) -->)", re.DOTALL
)
WORK = {
    ("workloads.jsonl", "edit"): "edits of code",
    ("workloads.jsonl", "agent"): "agents: files and test results from tools",
    ("humaneval.jsonl", ALL): "code (HumanEval)",
    ("schema.jsonl", ALL): "JSON by a schema",
    ("workloads.jsonl", "dialogue"): "dialogues of several turns",
    ("everyone.jsonl", ALL): "mixed prompts (Spec-Bench)",
    ("workloads.jsonl", "json"): "JSON without a schema",
    ("workloads.jsonl", "document"): "questions about a long document",
}
"""What the README calls the prompts of a file and category, in the order of its rows."""
MODELS = {"qwen2.5-coder-1.5b-instruct-q4_k_m": "Qwen2.5-Coder-1.5B, Q4_K_M, 1.1 GB"}
SAME = ("model", "quant", "cpu", "isa", "threads", "commit")
"""What all rows of the README's table have in common: the model, the machine and the build."""


def render(page: Path = README) -> str:
    """A page's text with fresh tables."""

    def fresh(found: re.Match[str]) -> str:
        path = page.parent / found["path"]
        if found["kind"] in OF_A_PATH:
            return f"{found[1]}{OF_A_PATH[found['kind']](path)}\n{found[4]}"
        origin, rounds = measurement.read(path)
        return f"{found[1]}{speeds(origin, summary.rows(rounds, origin))}\n{found[4]}"

    return BLOCK.sub(fresh, page.read_text(encoding="utf-8"))


def work(folder: Path) -> str:
    """A row for each kind of work: plain decoding, the default drafter, and llama.cpp where it ran.

    Raises:
        ValueError: the files of the folder are not of one model, machine and build.
    """
    found = {name: measurement.read(folder / name) for name in dict.fromkeys(n for n, _ in WORK)}
    origins = [origin for origin, _ in found.values()]
    if len({tuple(str(origin[key]) for key in SAME) for origin in origins}) > 1:
        raise ValueError(f"{folder} has runs that differ in one of {', '.join(SAME)}")
    model = MODELS[str(origins[0]["model"])]
    rows = {name: summary.rows(rounds, origin) for name, (origin, rounds) in found.items()}
    lines = [
        [label, model, *_rates([row for row in rows[name] if row["category"] == category])]
        for (name, category), label in WORK.items()
    ]
    head = ["work", "model", "plain", "forerun", "speed-up", "llama.cpp", "llama.cpp, lookup"]
    return markdown_table(head, lines, num_left=2)


def _rates(rows: list[Row]) -> list[str]:
    """Tokens a second of plain decoding and the default drafter, the speed-up, and llama.cpp's tokens a second."""
    by_name = {_name(row, ""): row for row in rows}
    default = by_name[f"forerun, `{_default(rows)}`"]
    peers = [by_name.get(name) for name in ("llama.cpp, plain", "llama.cpp, lookup")]
    return [
        number(by_name["forerun, plain"]["tok_s"], 1),
        number(default["tok_s"], 1),
        f"{_value(default, 'speedup'):.2f}x",
        *("–" if row is None else number(row["tok_s"], 1) for row in peers),
    ]


def speeds(origin: Mapping[str, object], rows: list[Row]) -> str:
    """What was run, a line a system, the fastest first, and the default drafter's gain by kind of prompt."""
    totals, default = [row for row in rows if row["category"] == ALL], _default(rows)
    able = sorted(
        (row for row in totals if "error" not in row), key=lambda row: -_value(row, "tok_s")
    )
    lines = [
        [
            _name(row, default),
            number(row["tok_s"], 0),
            _speedup(row),
            number(row["tau"], 2) if row["tau"] is not None else "",
            "" if row["ttft_ms"] is None else f"{number(row['ttft_ms'], 0)} ms",
        ]
        for row in able
    ]
    lines += [
        [_name(row, default), f"could not run: {row['error']}", "", "", ""]
        for row in totals
        if "error" in row
    ]
    head = ["", "tok/s", "over our plain decode", "tokens per pass (tau)", "time to first token"]
    prompts = next(row["prompts"] for row in able)
    measured = (
        f"{origin['model']} ({origin['quant']}), {prompts} prompts of `{origin['task']}`, greedy, "
        f"{origin['max_tokens']} new tokens, {origin['threads']} threads of {origin['cpu']} "
        f"({origin['isa']}), all systems interleaved in one run:"
    )
    parts = [
        wrapped(measured),
        markdown_table(head, lines),
        wrapped(_by_kind(rows)),
        _identical(able),
    ]
    return "\n\n".join(filter(None, parts))


def _by_kind(rows: list[Row]) -> str:
    """The speed-ups of the default drafter, best first."""
    drafter = _default(rows)
    own = [row for row in rows if row["drafter"] == drafter and row["category"] != ALL]
    if not own:
        return ""
    best = sorted(own, key=lambda row: -_value(row, "speedup"))
    kinds = [
        f"{str(row['category']).replace('_', ' ')} {_value(row, 'speedup'):.2f}x" for row in best
    ]
    return f"`{drafter}` by kind of prompt: {', '.join(kinds)}."


def _default(rows: list[Row]) -> str:
    """What `auto` is, or was when these were measured."""
    drafters = {str(row["drafter"]) for row in rows if "peer" not in row}
    return next(name for name in (*DEFAULTS, "suffix") if name in drafters)


def _identical(able: list[Row]) -> str:
    """In how many answers drafting changed nothing: all of them, or the bench would have failed."""
    ours = [row for row in able if "peer" not in row]
    same = min(_value(row, "identical") for row in ours)
    return f"{same:.0f} of {ours[0]['prompts']} answers are identical with and without drafting."


def _name(row: Row, default: str) -> str:
    if "peer" in row:
        return f"{row['peer']}, {row['drafter']}"
    if row["drafter"] == "none":
        return "forerun, plain"
    return f"forerun, `{row['drafter']}`" + (" (default)" if row["drafter"] == default else "")


def _speedup(row: Row) -> str:
    if row["drafter"] == "none" and "peer" not in row:
        return "1"
    low, high = number(row["speedup_lo"], 2), number(row["speedup_hi"], 2)
    return f"{number(row['speedup'], 2)}x [{low}, {high}]"


def _value(row: Row, key: str) -> float:
    value = row[key]
    assert isinstance(value, int | float)
    return float(value)


OF_A_PATH = {"work": work, "devices": device_table.table}
"""What makes a table of a path alone, by its kind."""


def main() -> None:
    """Write the tables of both pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    is_check = parser.parse_args().check
    for page in PAGES:
        fresh = render(page)
        if not is_check:
            page.write_text(fresh, encoding="utf-8")
        elif fresh != page.read_text(encoding="utf-8"):
            name = page.relative_to(ROOT)
            sys.exit(f"{name} differs from its measurements: run python -m dev.readme_table")


if __name__ == "__main__":
    main()
