"""What people read of a benchmark: markdown tables, with what they depend on above them.

A document (`{"provenance", "rows"}`, see `summary.py`) goes in, text comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.cli import tables
from forerun.lab.bench import summary
from forerun.lab.bench.measurement import Provenance, Round
from forerun.lab.bench.pass_costs import PassCosts
from forerun.lab.bench.summary import ALL, Row
from forerun.lab.output import NOTHING, Column, lines, markdown_table, number, publish, show_table

PROVENANCE = (
    ("model", "quant", "backend"),
    ("task", "max_tokens", "temperature", "batch", "seed"),
    ("controller", "draft_budget", "context", "repeats"),
    ("cpu", "isa", "threads", "processes", "cuda"),
    ("forerun", "commit", "python", "torch", "date"),
)
LEGEND = (
    "*Speed-up*: decoded tokens a second over those of plain decoding (`none`) in the same run, "
    "with the 95 % interval over prompts. *tau*: tokens a pass of the model. *Overhead*: tau over "
    "speed-up, less one: what drafting and wider passes cost. *draft*, *verify*: ms a pass. "
    "*TTFT*: median time to the first token. *Identical*: prompts whose tokens are those of plain "
    "decoding; a peer computes with other arithmetic, so there it is information, no verdict."
)
SHORT_LEGEND = (
    "speed-up: decoded tokens a second over plain decoding's, [95 % interval over prompts]; "
    "tau: tokens per pass of the model; same: prompts with plain decoding's tokens. "
    "bench report has all columns."
)


def markdown(
    provenance: Provenance, rows: Sequence[Row], plots: Mapping[str, str] | None = None
) -> str:
    """Return a section: provenance, totals, speed-ups by category; `plots` are captions and image paths."""
    parts = [f"## {provenance.get('model')} · {provenance.get('task')}", _origin(provenance)]
    parts += [totals(rows), LEGEND, "### Speed-up by category", by_category(rows)]
    return "\n\n".join(parts) + "\n" + _images(plots)


def markdown_of_passes(costs: Sequence[PassCosts], plots: Mapping[str, str] | None = None) -> str:
    """Return a section on what passes cost: a line a width, ms and v of each document."""
    columns = [column for cost in costs for column in (f"{cost.name}, ms", "v")]
    lines = []
    for k in sorted({k for cost in costs for k in cost.ms}):
        cells = []
        for cost in costs:
            known = k in cost.ms
            cells += [number(cost.ms[k], 2), number(cost.v(k), 2)] if known else [NOTHING] * 2
        lines.append([str(k), *cells])
    origins = [f"{cost.name}\n\n{_origin(cost.provenance)}" for cost in costs]
    parts = ["## What passes cost", *origins, markdown_table(["rows", *columns], lines)]
    return "\n\n".join(parts) + "\n" + _images(plots)


def totals(rows: Sequence[Row]) -> str:
    """Return a table with a line a system."""
    columns: dict[str, Column] = {
        "": label,
        "weights": "quant",
        "tok/s": ("tok_s", 1),
        "speed-up": speedup,
        "tau": ("tau", 2),
        "accepted": ("acceptance_rate", ".0%"),
        "overhead": ("overhead", ".0%"),
        "draft": lambda row: _a_pass(row, "draft_ms"),
        "verify": lambda row: _a_pass(row, "verify_ms"),
        "TTFT ms": ("ttft_ms", 0),
        "peak MB": ("peak_rss_mb", 0),
        "identical": lambda row: _identical(row, " of "),
    }
    table = []
    for row in rows:
        if "error" in row:
            table.append([label(row), f"could not run: {row['error']}", *[""] * (len(columns) - 2)])
        elif row["category"] == ALL:
            table += lines([row], columns)
    return markdown_table([*columns], table)


def by_category(rows: Sequence[Row]) -> str:
    """Return a table with a line a category and a column a system, plain decoding in tok/s."""
    cells = {(label(row), row["category"]): row for row in rows if "error" not in row}
    names = [*dict.fromkeys(name for name, _ in cells)]
    categories = dict.fromkeys(category for _, category in cells)
    lines = []
    for category in sorted(categories, key=lambda category: category == ALL):
        parts = [cells.get((name, category)) for name in names]
        figures = [NOTHING if row is None else speedup(row) for row in parts]
        if parts[0] is not None:
            figures[0] = f"{number(parts[0]['tok_s'], 1)} tok/s"
        lines.append([category, *figures])
    return markdown_table(["category", *names], lines)


def label(row: Row) -> str:
    """Return the name of a row's system: a drafter, or a peer and its way of decoding."""
    return f"{row['peer']} {row['drafter']}" if "peer" in row else str(row["drafter"])


def _images(plots: Mapping[str, str] | None) -> str:
    return "".join(f"\n![{caption}]({path})\n" for caption, path in (plots or {}).items())


def speedup(row: Mapping[str, Any]) -> str:
    """Return a row's speed-up, with its interval if there is one and the row is not plain decoding itself."""
    is_plain = row["drafter"] == "none" and "peer" not in row
    return ratio(row, "speedup", is_exact=is_plain)


def over_baseline(row: Mapping[str, Any]) -> str:
    """Return the ratio of a row's speed to the baseline's, with its interval; a dash where it was not measured."""
    if "over_baseline" not in row:
        return NOTHING
    return ratio(row, "over_baseline", is_exact=row["baseline"] == row["drafter"])


def ratio(row: Mapping[str, Any], name: str, *, is_exact: bool = False) -> str:
    """Return a ratio of a row, with its interval if there is one and the ratio is not 1 by definition."""
    text = f"{number(row[name], 2)}x"
    if is_exact or row[f"{name}_lo"] is None:
        return text
    return f"{text} [{number(row[f'{name}_lo'], 2)}, {number(row[f'{name}_hi'], 2)}]"


def _identical(row: Row, between: str) -> str:
    return NOTHING if row["identical"] is None else f"{row['identical']}{between}{row['prompts']}"


def _a_pass(row: Row, key: str) -> str:
    total, passes = row[key], row["passes"]
    return number(total / passes, 2) if total is not None and passes else NOTHING


def _origin(provenance: Provenance) -> str:
    lines = []
    for keys in PROVENANCE:
        known = [(key, provenance.get(key)) for key in keys]
        lines.append(", ".join(f"{key} {value}" for key, value in known if value is not None))
    return "\n".join(f"- {line}" for line in lines if line)


def publish_run(
    rounds: Sequence[Round], origin: Provenance, baseline: str | None, *, as_json: bool
) -> None:
    """Print the measurements as tables or JSON. Exits 1 if drafting changed a token."""
    rows = summary.rows(rounds, origin, baseline)
    different = summary.num_different(rows)

    publish(
        {"provenance": origin, "rows": rows},
        lambda: show(origin, rows, baseline),
        as_json=as_json,
        fails=different > 0,
        why=f"drafting changed the tokens of {different} prompts",
    )


def show(origin: Provenance, rows: Sequence[Row], baseline: str | None) -> None:
    """Print what people look at first; bench report and --json have the rest."""
    out = tables.report()
    known = ("model", "{}"), ("task", "{}"), ("max_tokens", "{} tokens"), ("threads", "{} threads")
    out.print(" · ".join(text.format(origin.get(key)) for key, text in known) + "\n")
    ran = [row for row in rows if "error" not in row]
    columns: dict[str, Column] = {
        "drafter": label, "tok/s": ("tok_s", 1), "speed-up": speedup, "tau": ("tau", 2),
    }  # fmt: skip
    beside: dict[str, Column] = {} if baseline is None else {f"over {baseline}": over_baseline}
    show_table(
        [row for row in ran if row["category"] == ALL],
        columns | beside | {"same": lambda row: _identical(row, "/")},
    )
    for row in rows:
        if "error" in row:
            out.print(f"{label(row)} could not run: {row['error']}")
    parts = [row for row in ran if row["category"] != ALL]
    if parts:
        out.print()
        columns = {"category": "category"} | columns | {"accepted": ("acceptance_rate", ".0%")}
        columns["speed-up"] = lambda row: f"{number(row['speedup'], 2)}x"
        columns["TTFT s"] = lambda row: number(row["ttft_ms"] and row["ttft_ms"] / 1e3, 2)
        order = [*dict.fromkeys(row["category"] for row in parts)]
        show_table(sorted(parts, key=lambda row: order.index(row["category"])), columns, num_left=2)
    out.print(f"\n{SHORT_LEGEND}")
