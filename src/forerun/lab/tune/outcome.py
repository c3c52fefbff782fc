"""What came of `forerun tune`: what was made, what it brought on prompts that it did not learn from, what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from forerun.cli import tables
from forerun.lab.bench import summary
from forerun.lab.bench.report import ratio
from forerun.lab.output import Column, number, show_table
from forerun.lab.tune.learn import Made
from forerun.lab.tune.report import MEASURED

NAMES = ("default", "with the table", "and a network")


def learned(
    made: Made, rows: Sequence[summary.Row], taus: Sequence[float], *, is_kept: bool
) -> dict[str, Any]:
    """Return what was made and what it brought, as JSON values; `rows` and `taus` are of the default and with each.

    `table` is None if it is not kept. A network's ratio is to what is kept without it.
    """
    keys = ("speedup", "speedup_lo", "speedup_hi", "tau")
    return {
        "table": str(made.path) if is_kept else None,
        "answers": str(made.answers),
        "tokens": made.num_tokens,
        "contexts": made.num_contexts,
        "before": {key: rows[0][key] for key in keys},
        "measured": {key: rows[1][key] for key in MEASURED},
        "tau_in_full": [round(tau, 4) for tau in taus],
        **_gain(rows[1]),
    }


def of_network(row: summary.Row, installed: Path | None, trained: Path) -> dict[str, Any]:
    """Return a network's results as JSON values; `installed` is None if it is not kept."""
    return {
        "path": None if installed is None else str(installed),
        "trained": str(trained),
        "measured": {key: row[key] for key in MEASURED},
        **_gain(row),
    }


def _gain(row: summary.Row) -> dict[str, Any]:
    return {key: row[key] for key in ("over_baseline", "over_baseline_lo", "over_baseline_hi")}


def show(document: Mapping[str, Any]) -> None:
    """Print the default drafter, it with the table and with a network, what they brought, and where they lie."""
    network = document["network"]
    parts = [document["before"], document["measured"], *([network["measured"]] if network else [])]
    gains = ["1.00x", ratio(document, "over_baseline")]
    if network:
        gains.append(ratio(network, "over_baseline"))
    columns: dict[str, Column] = {
        "drafter": itemgetter(0),
        "speed-up": lambda row: ratio(row[1], "speedup"),
        "tau": lambda row: number(row[1]["tau"], 2),
        "tau in full": lambda row: number(row[2], 3),
        "gain": itemgetter(3),
    }
    show_table([*zip(NAMES, parts, document["tau_in_full"], gains, strict=False)], columns)
    out = tables.report()
    out.print(
        f"{document['measured']['prompts']} prompts that it did not learn from, tokens as in plain decoding; "
        f"{tables.TAU}, in full: with every draft, without the controller; gain: of the table over the default, of the "
        "network over what is kept without it"
    )
    where = "the table is no better in full than what is there: not kept"
    if document["table"]:
        where = f"{document['table']}: the default drafter finds it"
    made_of = f"{document['tokens']} tokens of answers in {document['answers']}"
    out.print(f"{where} ({made_of})", soft_wrap=True)
    if network:
        where = f"the network is not better in full and faster than without it: not kept ({network['trained']})"
        if network["path"]:
            where = f"{network['path']}: the default drafter finds the network"
        out.print(where, soft_wrap=True)
