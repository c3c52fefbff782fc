"""`forerun bench diff`: what changed between two runs of bench. Measures nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forerun.cli import options as opt


@opt.command()
@opt.argument("first", type=opt.PATH, help="What bench --out wrote before.")
@opt.argument("second", type=opt.PATH, help="What it wrote after.")
@opt.as_json
def command(first: Path, second: Path, as_json: bool) -> None:
    """Say what changed between two runs: tokens, tokens a pass, and speed against plain decoding in the same run.

    The interval holds on a noisy machine; it is narrower with more prompts and --rounds. To compare two drafters on one
    machine, bench -d A,B --baseline A measures them in turns.
    """
    from forerun.lab.bench import diff
    from forerun.lab.output import publish

    document = diff.compare(first, second)
    publish(document, lambda: _show(document), as_json=as_json)


def _show(document: dict[str, Any]) -> None:
    from forerun.cli import tables
    from forerun.lab.bench.diff import verdict
    from forerun.lab.output import NOTHING, Column, number, show_table

    def both(name: str, digits: int, unit: str = "") -> Column:
        def cell(row: dict[str, Any]) -> str:
            if name not in row:
                return NOTHING
            return " > ".join(f"{number(value, digits)}{unit}" for value in row[name])

        return cell

    def gain(row: dict[str, Any]) -> str:
        if row.get("gain") is None:
            return NOTHING
        text = f"{number(row['gain'], 2)}x"
        interval = [number(row[name], 2) for name in ("gain_lo", "gain_hi")]
        return text if row["gain_lo"] is None else f"{text} [{', '.join(interval)}]"

    columns: dict[str, Column] = {
        "drafter": lambda row: " > ".join(dict.fromkeys((row["drafter"], row["other"]))),
        "tok/s": both("tok_s", 1),
        "tau": both("tau", 2),
        "speed-up": both("speedup", 2, "x"),
        "gain": gain,
        "same": lambda row: (
            f"{row['identical']}/{row['groups']}" if "identical" in row else NOTHING
        ),
        "": verdict,
    }
    out = tables.report()
    for name, (before, after) in document["changed"].items():
        out.print(f"{name}: {before} > {after}", soft_wrap=True)
    show_table(document["rows"], columns)
    out.print(
        f"{document['groups']} groups of prompts in both; {tables.TAU}; speed-up: over plain decoding of the same run; "
        "gain: of the second speed-up over the first, [95 % interval over groups and rounds]; same: groups with the "
        "same tokens. tok/s holds what else the machine did."
    )
