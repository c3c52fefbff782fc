"""A trained drafter as a folder: config.json, model.safetensors (fp16 or int8 codes), train.json: how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from forerun.core import files
from forerun.core.errors import ForerunError
from forerun.drafting.networks import folder as network_folder
from forerun.lab.train import held_out, simulated
from forerun.lab.train.held_out import EngineRun
from forerun.lab.train.session import Data, record_of
from forerun.lab.train.simulated import Acceptance, SimulatedReply
from forerun.lab.train.trainer import Trainer
from forerun.llm import LLM
from forerun.model.loader import read_config, stored_weights
from forerun.weights.checkpoint import open_checkpoint

RECORD, METRICS = "train.json", "metrics.csv"


def write(
    folder: Path,
    config: Mapping[str, object],
    weights: Mapping[str, Tensor],
    ids: Tensor,
    record: Mapping[str, object],
    history: Sequence[Mapping[str, float]],
    *,
    int8: bool = False,
) -> None:
    """Write all, each file whole or not at all, the configuration last. Raises ForerunError if there is no room."""
    tensors = {name: weight.half() for name, weight in weights.items()}
    if int8:
        tensors = network_folder.rounded(tensors)
    try:
        write_record(folder, record, history)
        network_folder.write(folder, config, {**tensors, "draft_ids": ids})
    except OSError as error:
        raise ForerunError(f"{folder} cannot be written: {error}") from error


def write_record(
    folder: Path, record: Mapping[str, object], history: Sequence[Mapping[str, float]]
) -> None:
    """How it was made, and a line a step. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    files.replace(folder / METRICS, _csv(history).encode())
    files.replace(folder / RECORD, json.dumps(record, indent=2).encode() + b"\n")


def _csv(history: Sequence[Mapping[str, float]]) -> str:
    """A line a step; columns that a step has not are empty."""
    columns = list(dict.fromkeys(name for line in history for name in line))
    lines = [",".join(columns)]
    lines += [
        ",".join(f"{line[name]:.6g}" if name in line else "" for name in columns)
        for line in history
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class WrittenForm:
    """How a drafter is written, and the command that makes it."""

    command: str = ""
    int8: bool = False


def try_out(
    llm: LLM, trainer: Trainer, data: Data, form: WrittenForm, parts: Sequence[SimulatedReply] = ()
) -> EngineRun:
    """Write the best weights so far, and draft with them."""
    _write(trainer, data, form, parts)
    kind = str(trainer.learner.config()["model_type"])
    return held_out.measure(llm, data.held_out, kind, model=str(trainer.folder))


def _write(
    trainer: Trainer,
    data: Data,
    form: WrittenForm,
    parts: Sequence[SimulatedReply] = (),
    run: EngineRun | None = None,
) -> None:
    """The best weights so far; with `parts` and `run`, what was measured of them."""
    done, shape = trainer.progress, trainer.target.config
    target = {
        "name": data.model,
        "hidden_size": shape.hidden_size,
        "num_layers": shape.num_layers,
        "vocab_size": shape.vocab_size,
        "tokenizer": data.vocabulary,
    }
    measured = (
        {name: asdict(each) for name, each in simulated.by_domain(parts).items()} if parts else {}
    )
    config = trainer.learner.config() | {
        "draft_vocab_size": len(trainer.ids),
        "target": target,
        "temperature": simulated.temperatures(parts) if parts else [1.0] * trainer.depth,
    }
    record = record_of(trainer, data, measured, form.command, run)
    what = (config, trainer.best, trainer.ids, record, done.history)
    write(trainer.folder, *what, int8=form.int8)


def finish(
    llm: LLM, trainer: Trainer, data: Data, form: WrittenForm = WrittenForm()
) -> tuple[dict[str, Acceptance], EngineRun]:
    """Measure the best weights on all replies that are held out, and in the engine; write them, and what was found."""
    trainer.learner.net.load_state_dict(trainer.best)
    parts = trainer.measure(data.held_out)
    run = try_out(llm, trainer, data, form, parts)
    _write(trainer, data, form, parts, run)
    return simulated.by_domain(parts), run


def last_layer(llm: LLM) -> dict[str, Tensor]:
    """The target's last layer and norm, fp32."""
    checkpoint = open_checkpoint(llm.path)
    shape, arch = read_config(checkpoint)
    name = f"layers.{shape.num_layers - 1}."
    found = {}
    for key, stored in stored_weights(checkpoint, arch, shape):
        if key == "norm" or key.startswith(name):
            found[key] = stored.dequantize()
        stored.release()
    return found
