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

NONE = "–"
"""In the place of a gain that would be noise."""


def learned(
    made: Made,
    rows: Mapping[str, summary.Row],
    installed: Path | None,
    *,
    is_new: bool,
) -> dict[str, Any]:
    """Return what was made and what it brought, as JSON values.

    `rows` are of the default, with the table of before if there was one, and with the one that is made.
    `installed` is the table that drafters find now, which `is_new` or not. Ratios are to the default; a network's is to
    what is kept without it.
    """
    keys = ("speedup", "speedup_lo", "speedup_hi", "tau")
    default, *own, new = rows.values()
    return {
        "table": str(installed) if is_new else None,
        "kept": None if is_new or installed is None else str(installed),
        "answers": str(made.answers),
        "tokens": made.num_tokens,
        "contexts": made.num_contexts,
        "before": {key: default[key] for key in keys},
        "own": {key: own[0][key] for key in keys} | _gain(own[0]) if own else None,
        "measured": {key: new[key] for key in MEASURED},
        **_gain(new),
    }


def of_network(
    row: summary.Row, installed: Path | None, trained: Path, *, is_new: bool
) -> dict[str, Any]:
    """Return a network's results as JSON values; `installed` is the one that drafters find now."""
    return {
        "path": str(installed) if is_new else None,
        "kept": None if is_new or installed is None else str(installed),
        "trained": str(trained),
        "measured": {key: row[key] for key in MEASURED},
        **_gain(row),
    }


def _gain(row: summary.Row) -> dict[str, Any]:
    return {key: row[key] for key in ("over_baseline", "over_baseline_lo", "over_baseline_hi")}


def _kept_without_network(document: Mapping[str, Any]) -> int:
    """Return the line of what a network is compared with: the new table if it is kept, else that of before, or none."""
    if document["table"]:
        return 2 if document["own"] else 1
    return 1 if document["own"] else 0


def _shown_gain(gain: Mapping[str, Any], of: Sequence[float], over: Sequence[float]) -> str:
    """Write a gain; where as many tokens a pass come, measured or in full, it is the machine's noise."""
    is_noise = any(f"{a:.2f}" == f"{b:.2f}" for a, b in zip(of, over, strict=True))
    return NONE if is_noise else ratio(gain, "over_baseline")


def show(document: Mapping[str, Any]) -> None:
    """Print the default drafter, it with the table and with a network, what they brought, and where they lie."""
    network, own = document["network"], document["own"]
    shown = [
        ("with the table of before", own, own, 0),
        ("with the table", document["measured"], document, 0),
        (
            "and a network",
            network and network["measured"],
            network,
            _kept_without_network(document),
        ),
    ]
    names, parts = ["default"], [document["before"] | {"gain": "1.00x"}]
    in_full = document["tau_in_full"]
    for name, part, gain, over in shown:
        if part:
            taus = ((part["tau"], in_full[len(parts)]), (parts[over]["tau"], in_full[over]))
            names.append(name)
            parts.append(part | {"gain": _shown_gain(gain, *taus)})
    columns: dict[str, Column] = {
        "drafter": itemgetter(0),
        "speed-up": lambda row: ratio(row[1], "speedup"),
        "tau": lambda row: number(row[1]["tau"], 2),
        "tau in full": lambda row: number(row[2], 3),
        "gain": lambda row: row[1]["gain"],
    }
    show_table([*zip(names, parts, document["tau_in_full"], strict=True)], columns)
    out = tables.report()
    out.print(
        f"{document['measured']['prompts']} prompts that it did not learn from, tokens as in plain decoding; "
        f"{tables.TAU}, in full: with every draft, without the controller; gain: of the table over the default, of the "
        "network over what is kept without it"
    )
    where = "the table is not better in full than what is there: not kept"
    if document["kept"]:
        where += f", {document['kept']} stays"
    elif own and not document["table"]:
        where += "; the one of before was slower than the default: removed"
    if document["table"]:
        where = f"{document['table']}: the default drafter finds it"
    made_of = f"{document['tokens']} tokens of answers in {document['answers']}"
    out.print(f"{where} ({made_of})", soft_wrap=True)
    if network:
        where = f"the network is not better in full and faster than without it: not kept ({network['trained']})"
        if network["kept"]:
            where += f", {network['kept']} stays"
        if network["path"]:
            where = f"{network['path']}: the default drafter finds the network"
        out.print(where, soft_wrap=True)
