"""Write the table of machines in benchmarks/README.md from what `forerun bench share` has said of them.

    python -m dev.machines [--check]

The files lie in benchmarks/machines, one a machine and model. `--check` exits 1 if the table is another.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from forerun.lab.output import markdown_table

HOME = Path(__file__).parent.parent / "benchmarks"
PAGE, MACHINES = HOME / "README.md", HOME / "machines"
BLOCK = re.compile(r"(<!-- machines -->\n).*?(<!-- /machines -->)", re.DOTALL)
HEAD = (
    *("processor", "kernels", "threads", "model", "a token, ms", "v(4)", "v(8)", "v(16)"),
    *("prompt of 512, tokens/s", "drafted", "date"),
)


def row(said: dict[str, Any]) -> list[str]:
    """Return a machine's cells."""
    origin, passes = said["provenance"], {one["case"]: one for one in said["passes"]["rows"]}
    by_rows = {one["k"]: one for one in passes.values() if one["context"]}
    drafted = [one for one in said["drafting"] if one["category"] == "all"][-1]
    low, high = drafted["speedup_lo"], drafted["speedup_hi"]
    return [
        *(f"{origin['cpu']}, {origin['platform']}", said["isas"]["ran"], str(origin["threads"])),
        *(origin["model"], f"{by_rows[1]['ms']:.1f}"),
        *(f"{by_rows[k]['v']:.2f}" for k in (4, 8, 16)),
        f"{passes['512@0']['tok_s']:.0f}",
        f"{drafted['speedup']:.2f}x [{low:.2f}, {high:.2f}]",
        origin["date"][:10],
    ]


def page() -> str:
    """Return the page with the table of all files."""
    files = sorted(MACHINES.glob("*.json"))
    rows = [row(json.loads(path.read_text(encoding="utf-8"))) for path in files]
    text = PAGE.read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: f"{found[1]}{markdown_table(HEAD, rows)}\n{found[2]}", text)


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        if page() != PAGE.read_text(encoding="utf-8"):
            sys.exit(f"{PAGE} is stale: run python -m dev.machines")
    else:
        PAGE.write_text(page(), encoding="utf-8")
