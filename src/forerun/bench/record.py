"""One line a measurement: what one contender did for one unit of prompts in one round, with the provenance of the run.

A file of such lines is the whole memory of a benchmark: an interrupted run goes on from it, and every table and plot
comes from it. Nothing is averaged here.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forerun.core import device
from forerun.core.errors import ConfigError
from forerun.formats.checkpoint import open_checkpoint

NOT_COMPARED = ("date",)
"""What may differ between the lines of one run."""

Provenance = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Counts and seconds of one contender, one unit, one round; lists hold one entry a prompt and turn.

    `decode_s` runs from the moment when all prompts of a turn have their first token; `decode_tokens` are those after
    it. `quant` is what a peer made of the weights, None: as in the file. `error` says why there is nothing to count:
    then everything else is empty.
    """

    contender: str
    unit: str
    category: str
    round: int
    num_prompts: int
    peer: str | None = None
    quant: str | None = None
    token_ids: tuple[tuple[int, ...], ...] = ()
    decode_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    ttft_s: tuple[float, ...] = ()
    draft_s: float = 0.0
    verify_s: float = 0.0
    passes: int = 0
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    peak_rss_mb: float = 0.0
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Generated tokens, the first ones included."""
        return sum(map(len, self.token_ids))


def provenance(model: str, quant: str, **options: str | int | float | None) -> dict[str, object]:
    """What the figures depend on: machine, versions, commit, model and options of the run."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    machine = device.report()
    return {"date": now, "commit": commit(), "model": model, "quant": quant, **machine, **options}


def quant_of(model: Path) -> str:
    """How most bytes of a model's weights are stored, in GGUF's names."""
    checkpoint = open_checkpoint(model)
    nbytes: Counter[str] = Counter()
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name)
        nbytes[tensor.format.name.upper()] += tensor.nbytes
    return nbytes.most_common(1)[0][0]


def commit() -> str | None:
    """The commit of the source tree this runs from, `-dirty` if it was changed; None outside of git."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():  # installed: a repository around it would be someone else's
        return None
    git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


class Record:
    """A file of measurements that grows line by line; without a path they are kept in memory only."""

    def __init__(self, origin: Provenance, path: Path | None = None) -> None:
        """Take up what the file holds. Raises ConfigError if it is another run's."""
        self.origin = origin
        self.path = path
        self.measurements: list[Measurement] = []
        if path is not None and path.exists():
            found, self.measurements = read(path)
            _check_same(path, found, origin)

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Note measurements, in one write, so that an interruption leaves whole lines."""
        new = list(measurements)
        self.measurements += new
        if self.path is not None:
            lines = [json.dumps({**asdict(m), "provenance": self.origin}) + "\n" for m in new]
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(lines))

    def has(self, unit: str, round_: int, contenders: Iterable[str]) -> bool:
        """True if this round of a unit is complete: all of these contenders were measured in it."""
        done = {m.contender for m in self.measurements if (m.unit, m.round) == (unit, round_)}
        return done.issuperset(contenders)

    def forget(self, unit: str, round_: int) -> None:
        """Drop an incomplete round: contenders are only compared within one."""
        self.measurements = [m for m in self.measurements if (m.unit, m.round) != (unit, round_)]


def read(path: Path) -> tuple[dict[str, object], list[Measurement]]:
    """The provenance and the measurements of a file; of a round measured twice the later one counts.

    Raises ConfigError naming the line that cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read measurements from {path}: {error}") from error
    found: dict[str, object] = {}
    latest: dict[tuple[str, str, int], Measurement] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            found = row.pop("provenance")
            measurement = Measurement(**{key: _as_tuple(value) for key, value in row.items()})
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ConfigError(f"{path} line {number} is no measurement: {error}") from error
        latest[measurement.contender, measurement.unit, measurement.round] = measurement
    return found, list(latest.values())


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _check_same(path: Path, found: Provenance, origin: Provenance) -> None:
    differing = [
        f"{key} {found.get(key)!r} there, {value!r} here"
        for key, value in origin.items()
        if found and key not in NOT_COMPARED and found.get(key) != value
    ]
    if differing:
        raise ConfigError(f"{path} holds another run's measurements ({'; '.join(differing)})")
