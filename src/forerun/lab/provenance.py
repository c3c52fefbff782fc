"""Say what results depend on: machine, versions and commit, the model and the options of a run."""

from __future__ import annotations

import datetime
import math
import subprocess
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.core.config import EngineConfig
from forerun.system import device

if TYPE_CHECKING:
    from forerun.llm import LLM


def provenance(model: str, quant: str, **options: object) -> dict[str, object]:
    """Collect the origin of a run's results; `options` are JSON values."""
    known = {"date": now(), "commit": commit(), "model": model, "quant": quant}
    return {**known, **device.report(), "torch": _torch_version(), **options}


def origin(config: EngineConfig, llm: LLM, **options: object) -> dict[str, object]:
    """Collect the provenance of a command's results from how its model runs and the command's `options`."""
    from forerun.hub.names import resolve

    path = resolve(config.model)
    quant = _stored_quant(path) if config.quant == "none" else config.quant
    known: dict[str, Any] = {"backend": type(llm.model).__name__, "head_bits": config.head_bits}
    known["threads"] = llm.model.num_threads
    if config.tensor_parallel_size > 1:
        known["processes"] = config.tensor_parallel_size
    if config.kv != "auto":
        known["kv"] = config.kv
    return provenance(path.stem, quant, **known, **options)


def _torch_version() -> str | None:
    """Name the torch that is installed, which need not be imported; None if there is none."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def now() -> str:
    """Read the clock: the time to the second, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """Describe the commit of this source tree, `-dirty` if it was changed; None outside of git."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():  # installed: a repository around it would be someone else's
        return None
    git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _stored_quant(model: Path) -> str:
    """Name the format that most of a model's weights are stored in; of bytes an fp16 embedding may have more."""
    from forerun.weights.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(model)
    num_weights: Counter[str] = Counter()
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name)
        num_weights[tensor.format.name.upper()] += math.prod(tensor.shape)
    return num_weights.most_common(1)[0][0]
