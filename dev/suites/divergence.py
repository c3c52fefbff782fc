"""How often speculation changes an engine's own greedy answers: `python -m dev.suites.divergence FILE`.

FILE is what `forerun bench --no-controller --peers ... --out FILE` wrote: every engine answers the same prompts plainly
and with each of its ways of speculating, and each way is compared with that engine's own plain answers. Prints a table
in Markdown; exits 1 if one of our own answers differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from forerun.lab.bench import measurement
from forerun.lab.bench.measurement import Round
from forerun.lab.bench.run import PLAIN
from forerun.lab.output import NOTHING, markdown_table

COLUMNS = ("engine", "way", "answers", "that differ", "tokens until they do, median")


@dataclass(frozen=True, slots=True)
class Divergence:
    """A way of speculating beside the same engine's plain decoding."""

    engine: str
    way: str
    num_answers: int = 0
    firsts: tuple[int, ...] = ()
    """Of each answer that differs, the place of the first other token."""
    error: str | None = None

    def cells(self) -> list[str]:
        """The line of the table."""
        if self.error is not None:
            return [self.engine, self.way, f"could not run: {self.error}", "", ""]
        share = len(self.firsts) / max(self.num_answers, 1)
        place = f"{median(self.firsts):.0f}" if self.firsts else NOTHING
        return [
            self.engine,
            self.way,
            str(self.num_answers),
            f"{len(self.firsts)} ({share:.0%})",
            place,
        ]


def divergences(rounds: Sequence[Round]) -> Iterator[Divergence]:
    """One for each system that is not plain decoding, in the order in which they were measured."""
    systems = {m.system: m for r in rounds for m in r.measurements}
    for name, one in systems.items():
        way = name.removeprefix(f"{one.peer} ") if one.peer else name
        base = f"{one.peer} plain" if one.peer else PLAIN
        if name == base:
            continue
        engine = one.peer or "forerun"
        errors = [
            m.error for r in rounds for m in r.measurements if m.system in (name, base) and m.error
        ]
        if errors or base not in systems:
            yield Divergence(engine, way, error=errors[0] if errors else "no plain answers")
            continue
        pairs = [
            (a.token_ids, b.token_ids) for r in rounds if (a := r.of(base)) and (b := r.of(name))
        ]
        answers = [pair for plain, own in pairs for pair in zip(plain, own, strict=True)]
        firsts = [
            place for plain, own in answers if (place := first_difference(plain, own)) is not None
        ]
        yield Divergence(engine, way, len(answers), tuple(firsts))


def first_difference(plain: Sequence[int], own: Sequence[int]) -> int | None:
    """The place of the first token that differs, or None; an answer that ends early differs there.

    >>> first_difference([1, 2, 3], [1, 2, 3]), first_difference([1, 2], [1, 3]), first_difference([1, 2], [1])
    (None, 1, 1)
    """
    if [*plain] == [*own]:
        return None
    same = (i for i, (a, b) in enumerate(zip(plain, own, strict=False)) if a != b)
    return next(same, min(len(plain), len(own)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    _, rounds = measurement.read(parser.parse_args().file)
    found = [*divergences(rounds)]
    print(markdown_table(COLUMNS, [one.cells() for one in found]))
    if any(one.firsts for one in found if one.engine == "forerun"):
        sys.exit("one of our own answers differs from plain decoding's")


if __name__ == "__main__":
    main()
