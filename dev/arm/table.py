"""Instructions per multiplication of int8 numbers, by kernel and rows: an estimate of what emulation cannot time.

Counts say nothing of latencies, ports and memory: a processor may run four simple instructions at a time, or one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from dev.arm import emulation
from dev.arm.counts import ROWS

Count = dict[tuple[str, str, int], float]
"""Instructions per multiplication, by instruction set, format and rows."""


def measure(sysroot: Path) -> str:
    """Count on the CPU model that runs all kernels; a Markdown table."""
    plugin = emulation.BUILD / "count.so"
    source = Path(__file__).with_name("count.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", str(source), "-o", str(plugin)], check=True)
    done = emulation.run(sysroot, "max", ["-m", "dev.arm.counts"], plugin=plugin)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return to_markdown(read(done.stdout, done.stderr))


def read(printed: str, marked: str) -> Count:
    """Join what `dev.arm.counts` printed with the counts that the plugin wrote."""
    marks = [int(line.split()[2]) for line in marked.splitlines() if line.startswith("count ")]
    counts = {}
    for i, line in enumerate(printed.splitlines()):
        isa, form, rows, multiplications = line.split()
        first, after, again, end = marks[4 * i : 4 * i + 4]
        counts[isa, form, int(rows)] = (end - again - (after - first)) / int(multiplications)
    return counts


def to_markdown(counts: Count) -> str:
    """Write a line for each format, a column for each instruction set and number of rows."""
    isas = list(dict.fromkeys(isa for isa, _, _ in counts))
    columns = [(isa, rows) for isa in isas for rows in ROWS]
    lines = ["| format | " + " | ".join(f"{isa}, {rows}" for isa, rows in columns) + " |"]
    lines.append("|---|" + "---:|" * len(columns))
    for form in dict.fromkeys(form for _, form, _ in counts):
        cells = [f"{counts[isa, form, rows]:.3f}" for isa, rows in columns]
        lines.append(f"| {form} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
