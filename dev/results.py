"""What the methods bring, counted: `python -m dev.results` writes the table, `--check` runs it again and compares.

Tokens a pass do not depend on the machine, its load or its instruction set, as kernels have the same bits everywhere:
so a row of the table is right or wrong. It stands in benchmarks/README.md between `<!-- counted -->` and
`<!-- /counted -->`. `--models FOLDER` has the files of the larger models; rows without one are left as they were.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from forerun.hub.names import here
from forerun.lab.output import markdown_table

PAGE = Path(__file__).parent.parent / "benchmarks" / "README.md"
BLOCK = re.compile(r"(<!-- counted -->\n).*?(<!-- /counted -->)", re.DOTALL)
LIMIT, TOKENS, CONTEXT = 9, 48, 2048
SIBLING = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"


class Method(NamedTuple):
    """A row: whose method it is, the model, and the drafter as `-d` takes it."""

    name: str
    model: str
    drafter: str

    @property
    def cells(self) -> list[str]:
        """Its model and drafter as the table has them."""
        return [self.model.partition("-instruct")[0], f"`{self.drafter}`"]

    @property
    def key(self) -> str:
        """What tells a row from the others."""
        return " ".join(self.cells)


SMALL, LARGE = "smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
METHODS = (
    Method("Lookahead (LMSYS): window, text", SMALL, "lookahead"),
    Method("its window alone", SMALL, "lookahead:text_ngrams=no"),
    Method("n-grams of the text alone", SMALL, "lookahead:window=0"),
    Method("Lookahead, Jacobi", SMALL, "lookahead:window=3,ngram=2,guesses=3"),
    Method("speculator: LSTM (Arctic)", SMALL, "mlp_speculator"),
    Method("table of next tokens", SMALL, "recycling"),
    Method("both in one tree: `auto`", SMALL, "mlp_speculator++recycling"),
    Method("Lookahead (LMSYS): window, text", LARGE, "lookahead"),
    Method("draft model on 4 bits (TitanML)", LARGE, f"draft_model:model={SIBLING}"),
    Method("speculator: LSTM (Arctic)", LARGE, "mlp_speculator"),
    Method("`auto`", LARGE, "mlp_speculator++recycling"),
    Method("`auto` with the draft model", LARGE, f"auto:partner={SIBLING}"),
)


class Count(NamedTuple):
    """What a run counted; `tau` is tokens a pass."""

    tau: float
    drafted: int
    accepted: int
    is_identical: bool


def found(model: str, folder: Path) -> Path | None:
    """Return the file of a model; None if it is not here."""
    return here(model) or (folder / model if (folder / model).is_file() else None)


def count(method: Method, model: Path, folder: Path) -> Count:
    """Answer the built-in prompts with every draft in full."""
    drafter = method.drafter.replace(SIBLING, str(folder / SIBLING))
    command = [sys.executable, "-m", "forerun", "bench", model, "-d", drafter]
    command += ["--no-controller", "--json", "--limit", LIMIT, "-n", TOKENS, "-c", CONTEXT]
    printed = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE).stdout
    rows = [row for row in json.loads(printed)["rows"] if row["category"] == "all"]
    row = next(row for row in rows if row["drafter"] != "none")
    same = row["identical"] == row["prompts"]
    return Count(round(row["tau"], 2), row["drafted"], row["accepted"], same)


def line(method: Method, counted: Count) -> list[str]:
    """Return the cells of a row."""
    tokens = f"{counted.accepted} of {counted.drafted}"
    same = "yes" if counted.is_identical else "**no**"
    return [method.name, *method.cells, f"{counted.tau:.2f}", tokens, same]


def before() -> dict[str, list[str]]:
    """Return the rows that the page has, by model and drafter."""
    block = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    rows = block[0].splitlines() if block else []
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if "`" in row]
    return {f"{row[1]} {row[2]}": row for row in cells}


def main() -> None:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it differs")
    parser.add_argument("--models", type=Path, default=Path(), help="folder of the larger models")
    given, known, lines = parser.parse_args(), before(), list[list[str]]()
    for method in METHODS:
        old = known.get(method.key)
        if (model := found(method.model, given.models)) is None:
            sys.stderr.write(f"{method.model} is not here: {method.drafter} is not counted\n")
            lines += [] if old is None else [[method.name, *old[1:]]]
            continue
        row = line(method, count(method, model, given.models))
        lines.append(row)
        if given.check and row != old:
            sys.exit(f"{method.model}, {method.drafter}: the page says {old}, counted {row}")
    head = ["method", "model", "drafter", "tokens a pass", "accepted", "same tokens"]
    if not given.check:
        text = PAGE.read_text(encoding="utf-8")
        table = markdown_table(head, lines, num_left=3)
        PAGE.write_text(BLOCK.sub(lambda m: f"{m[1]}\n{table}\n{m[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
