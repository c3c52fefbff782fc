"""A training run from the replies to the written drafter: its data, the time left, figures and the record."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from forerun.cli import console, tables
from forerun.core.arrays import Ids
from forerun.core.errors import ConfigError
from forerun.drafters.base.vocabulary import fingerprint
from forerun.hub.names import name_of
from forerun.lab.bench.plots import draw
from forerun.lab.output import Column, show_table, writing
from forerun.lab.provenance import commit, now
from forerun.lab.train import held_out, replies, simulated, sources
from forerun.lab.train.answers import default_path, open_store
from forerun.lab.train.batches import lengths
from forerun.lab.train.device_states import DeviceStateReader
from forerun.lab.train.held_out import EngineRun
from forerun.lab.train.kept import RECORD
from forerun.lab.train.learners import Learner
from forerun.lab.train.replies import Reply, of_text
from forerun.lab.train.simulated import Acceptance, SimulatedReply
from forerun.lab.train.states import StateReader, StateRecorder
from forerun.lab.train.trainer import Progress, Trainer, TrainSettings
from forerun.llm import LLM
from forerun.system import files
from forerun.system.files import read_text
from forerun.system.opened import digest
from forerun.system.signals import handled_later
from forerun.weights.checkpoint import open_checkpoint

MAX_REPLY = 1024
"""Tokens of a prompt and its reply; longer ones are left out."""
BYTES_A_NUMBER = 2
METRICS = "metrics.csv"


@dataclass(frozen=True, slots=True)
class Data:
    """What is learned from and measured on, and whose replies they are."""

    model: str
    vocabulary: str
    path: Path
    texts: list[Reply]
    train: list[Reply]
    held_out: list[Reply]
    ids: Ids


def read_data(
    llm: LLM,
    answers: Path | None,
    texts: Sequence[Path],
    vocab: int,
    left_out: Collection[str] = (),
) -> Data:
    """Read the store of replies, but for those to prompts that are left out, and the texts. Raises ConfigError."""
    name = name_of(llm.path)
    path = answers or default_path(name)
    if not path.exists():
        raise ConfigError(f"{path} does not exist: make replies with forerun train data")
    vocabulary = fingerprint(llm.tokenizer)
    store = open_store(name, vocabulary, path)
    longest = min(llm.max_len, MAX_REPLY)
    short = [reply for reply in replies.of_store(store, left_out) if len(reply.tokens) <= longest]
    train, measured = replies.split(short)
    ids = draft_ids(train, vocab, llm.model.config.vocab_size)
    windows = [window for each in texts for window in _windows(llm, each)]
    return Data(name, vocabulary, path, windows, train, measured, ids)


def draft_ids(texts: Sequence[Reply], num: int, vocab_size: int) -> Ids:
    """Return the most frequent tokens of replies, ascending (n,) int64."""
    counts = Counter(token for reply in texts for token in reply.tokens[reply.first :])
    ranked = [token for token, _ in counts.most_common(num)]
    return np.array(sorted(token for token in ranked if token < vocab_size), np.int64)


def _windows(llm: LLM, path: Path) -> list[Reply]:
    """A text file's windows, as long as replies."""
    windows = list(of_text(path.name, llm.encode(read_text(path)), MAX_REPLY // 2))
    if not windows:
        raise ConfigError(f"{path} holds no text to learn from")
    return windows


def state_reader(
    llm: LLM,
    answers: Path,
    states_gb: float,
    layers: tuple[int, ...] = (),
    *,
    reads_all: bool = False,
    device: str = "cpu",
) -> StateReader:
    """Make what reads the target's states for a drafter, and keeps up to so many GB of them next to the replies.

    On a device they are those of the stored weights in fp32. Raises ConfigError for a family that is not read there.
    """
    config, files_of_model = llm.config, digest(open_checkpoint(llm.path).files)
    is_served = device == "cpu"
    as_served = [config.quant, config.head_bits, config.kv] if is_served else ["fp32"]
    made_by = [files_of_model, *as_served, layers, reads_all]
    reader = StateReader if is_served else DeviceStateReader.of(llm.path, device)
    return reader(
        llm.model,
        layers,
        all_rows=reads_all,
        max_len=min(llm.max_len, MAX_REPLY),
        folder=answers.with_suffix(".states") / digest_of(made_by),
        max_nbytes=round(states_gb * 1e9),
    )


@contextmanager
def states_kept(llm: LLM, answers: Path, states_gb: float) -> Iterator[None]:
    """Keep the states of what is answered meanwhile, up to so many GB of them next to the replies."""
    recorder = StateRecorder(state_reader(llm, answers, states_gb))
    llm.engine.watch = recorder.watch
    try:
        yield
    finally:
        llm.engine.watch = None
        recorder.write_ended()


def new_trainer(
    llm: LLM,
    learner: Learner,
    data: Data,
    settings: TrainSettings,
    states_gb: float,
    out: Path,
    origin: Mapping[str, object],
    device: str = "cpu",
) -> Trainer:
    """Make a run over the target's states, up to so many GB of them kept next to the replies."""
    what, reads_all = (llm, data.path, states_gb, learner.layers), learner.piece is None
    read = state_reader(*what, reads_all=reads_all, device=device)
    known = {"model": data.model, "vocabulary": data.vocabulary, **origin}
    return Trainer(learner, llm.model, data.ids, settings, read, out, origin=known)


def digest_of(value: object) -> str:
    """Hash any JSON value."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=4).hexdigest()


def run(
    llm: LLM, trainer: Trainer, data: Data, command: str, *, is_first: bool = True
) -> tuple[dict[str, object], Mapping[str, Acceptance], EngineRun] | None:
    """Train to the end, measure the best weights and write them. Ctrl-C writes a checkpoint and notes the progress.

    Returns the record, what was measured by domain, and the run in the engine; None unless this process `is_first`.
    """
    steps = trainer.run(data.texts, data.train, data.held_out)
    if is_first:
        _say_needs(trainer, data)
    try:
        with tables.counter("training", trainer.settings.tokens) as show:
            while (done := _whole_step(steps)) is not None:
                if is_first:
                    show(done.tokens)
                if is_first and "tau" in done.history[-1]:
                    is_tried = trainer.learner.is_tried_early
                    _note(done, _written(llm, trainer, data, command)[1] if is_tried else None)
    except KeyboardInterrupt:
        if trainer.progress.step:  # else an earlier run's checkpoint was not read yet
            trainer.save()
        if is_first:
            num_tokens = trainer.progress.tokens
            left = f"{num_tokens} of {trainer.settings.tokens} tokens are learned"
            console.note(f"{left}; the same command goes on", dim=True)
        raise
    if not is_first:
        return None
    trainer.learner.net.load_state_dict(trainer.best)
    parts = trainer.measure(data.held_out)
    record, in_engine = _written(llm, trainer, data, command, parts)
    _draw(trainer, data.model)
    return record, simulated.by_domain(parts), in_engine


def _written(
    llm: LLM, trainer: Trainer, data: Data, command: str, parts: Sequence[SimulatedReply] = ()
) -> tuple[dict[str, object], EngineRun]:
    """Write the best weights so far with what was measured of them, and draft with them. Raises ForerunError."""
    learner, folder = trainer.learner, trainer.folder
    by_domain = simulated.by_domain(parts) if parts else {}
    temperatures = simulated.temperatures(parts) if parts else [1.0] * learner.depth
    target = {"name": data.model, "tokenizer": data.vocabulary}
    with writing(folder):
        learner.write(folder, trainer.best, data.ids, target, temperatures)
        figures = learner.figures(llm, folder, data.ids, by_domain["all"].tau) if parts else {}
        name, options = learner.name, learner.drafter_options(folder)
        in_engine = held_out.measure(llm, data.held_out, name, **options)
        measured = figures | {name: asdict(each) for name, each in by_domain.items()}
        record = record_of(trainer, data, measured, command, in_engine if parts else None)
        write_record(folder, record, trainer.progress.history)
    return record, in_engine


def record_of(
    trainer: Trainer,
    data: Data,
    measured: Mapping[str, object],
    command: str,
    run: EngineRun | None = None,
) -> dict[str, object]:
    """Say how the weights were made."""
    done = trainer.progress
    return trainer.origin | {
        "command": command.replace("MODEL", data.model, 1),
        "date": now(),
        "commit": commit(),
        "answers": data.path.name,
        "prompts": [asdict(source) for source in sources.read(data.path)],
        "tokens": done.tokens,
        "best_tokens": done.best_tokens,
        "cpu_s": round(done.cpu_s),
        "target_tokens": trainer.read.num_computed,
        "held_out": measured,
        "in_engine": run and asdict(run),
    }


def write_record(
    folder: Path, record: Mapping[str, object], history: Sequence[Mapping[str, float]]
) -> None:
    """Write how it was made, and a line a step, whose columns that a step has not are empty. Raises OSError."""
    columns = list(dict.fromkeys(name for line in history for name in line))
    rows = [",".join(columns)]
    for line in history:
        rows.append(",".join(f"{line[name]:.6g}" if name in line else "" for name in columns))
    files.replace(folder / METRICS, ("\n".join(rows) + "\n").encode())
    files.replace(folder / RECORD, json.dumps(record, indent=2).encode() + b"\n")


def _whole_step(steps: Iterator[Progress]) -> Progress | None:
    """Take the next step, None at the end; Ctrl-C waits for its end, so that the run goes on as it would have."""
    with handled_later():
        return next(steps, None)


def _note(done: Progress, run: EngineRun | None) -> None:
    """A line on stderr for each measurement."""
    line = done.history[-1]
    alphas = " ".join(f"{line[key]:.3f}" for key in line if key.startswith("alpha_"))
    console.note(
        f"{done.tokens} tokens, {done.cpu_s:.0f} s of CPU: held-out tau {line['tau']:.3f}, at temperature 1 "
        f"{line['tau_sampled']:.3f} (in training {alphas}){f'; {run}' if run else ''}",
        dim=True,
    )


def _say_needs(trainer: Trainer, data: Data) -> None:
    """What is there and what it will take, before it starts."""
    train, texts, measured = data.train, data.texts, data.held_out
    rows = lengths([*texts, *train], trainer.depth)
    width = trainer.target.config.hidden_size * (1 + len(trainer.learner.layers))
    seen = sum(
        len(r.tokens) - (0 if trainer.read.all_rows else r.first - 1) for r in (*train, *texts)
    )
    weights = sum(weight.numel() for weight in trainer.learner.net.parameters())
    disk_mb = weights * (4 * 4 + BYTES_A_NUMBER) / 1e6  # now, at best, and AdamW's two
    states = min(seen * (BYTES_A_NUMBER * width + 12), trainer.read.max_nbytes)
    console.note(
        f"{len(train)} replies{f' and {len(texts)} windows of text' if texts else ''}, {rows} tokens to learn from "
        f"({trainer.settings.tokens / max(rows, 1):.1f} epochs), {len(measured)} replies held out; "
        f"{weights / 1e6:.2f} M weights; at most {disk_mb:.0f} MB on disk, and {states / 1e9:.1f} GB of states in "
        f"{trainer.read.folder}, which may be deleted",
        dim=True,
    )


def _draw(trainer: Trainer, model: str) -> None:
    """Loss and accept length over the run, beside its metrics.csv; a line on stderr without matplotlib."""
    try:
        history, folder = trainer.progress.history, trainer.folder
        draw(("training",), history, folder, folder.name, title=model)
    except (ConfigError, OSError) as error:
        console.note(f"no plot: {error}", dim=True)


def show(
    trainer: Trainer, record: Mapping[str, Any], by_domain: Mapping[str, Acceptance], run: EngineRun
) -> None:
    """Print what was measured by domain, and how to use the drafter."""
    learner, folder = trainer.learner, trainer.folder

    def guess(step: int) -> Column:
        return lambda row: f"{row[1].match[step]:.3f}"

    columns: dict[str, Column] = {
        "domain": lambda row: row[0],
        "tau": lambda row: f"{row[1].tau:.3f}",
        **{f"guess {i + 1}": guess(i) for i in range(learner.depth)},
        "tau at 1": lambda row: f"{row[1].tau_sampled:.3f}",
        "alpha": lambda row: f"{row[1].alpha[0]:.3f}",
        "tau in the engine": lambda row: f"{run.tau[row[0]]:.3f}",
    }
    show_table(by_domain.items(), columns)
    given = ",".join(f"{key}={value}" for key, value in learner.drafter_options(folder).items())
    out = tables.report()
    for line in (*learner.notes(record), str(run)):
        out.print(line)
    out.print(f"{folder}: use it with -d {learner.name}:{given}")


def has_bf16(device: str = "cpu") -> bool:
    """Tell whether a device multiplies bf16 itself; emulated it would be slower than fp32."""
    if device == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


@contextmanager
def processes(device: str = "cpu") -> Iterator[bool]:
    """Join the other processes of `torchrun`, if there are any; yields whether this is the first."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    try:
        yield distributed.get_rank() == 0
    finally:
        distributed.destroy_process_group()
