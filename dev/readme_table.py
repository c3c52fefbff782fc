"""The README's table of speeds, from measurements: `python -m dev.readme_table` writes it, `--check` compares.

It stands between `<!-- speeds: FILE -->` and `<!-- /speeds -->`; FILE is what `forerun bench --out` wrote, its path
relative to the README. To show another run, change the name there.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from dev.markdown import wrapped
from forerun.drafters.base.parse import AUTO_CHOICE
from forerun.lab.bench import measurement, summary
from forerun.lab.bench.summary import ALL, Row
from forerun.lab.output import markdown_table, number

README = Path(__file__).parent.parent / "README.md"
DEFAULTS = (f"mlp_speculator++{AUTO_CHOICE}", AUTO_CHOICE)
"""The default drafter of a model that a network ships for, and of others."""
BLOCK = re.compile(r"(<!-- speeds: (\S+) -->\n).*?(<!-- /speeds -->)", re.DOTALL)


def render(readme: Path = README) -> str:
    """The README's text with fresh tables."""

    def fresh(found: re.Match[str]) -> str:
        origin, rounds = measurement.read(readme.parent / found[2])
        return f"{found[1]}{speeds(origin, summary.rows(rounds, origin))}\n{found[3]}"

    return BLOCK.sub(fresh, readme.read_text(encoding="utf-8"))


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


def main() -> None:
    """Write the README's tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    fresh = render()
    if not parser.parse_args().check:
        README.write_text(fresh, encoding="utf-8")
    elif fresh != README.read_text(encoding="utf-8"):
        sys.exit(
            "README.md's table is not that of its measurements: run python -m dev.readme_table"
        )


if __name__ == "__main__":
    main()
