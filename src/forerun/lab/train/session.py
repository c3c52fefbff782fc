"""What the commands that train have in common: replies, the run with its time left, figures and the record."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from forerun.cli import console
from forerun.core.errors import ConfigError
from forerun.core.textfile import read_text
from forerun.drafting.vocabulary import fingerprint
from forerun.hub.names import name_of
from forerun.lab.bench.plots import draw_run
from forerun.lab.provenance import commit, now
from forerun.lab.train import replies, sources
from forerun.lab.train.answers import default_path, open_store
from forerun.lab.train.batches import lengths
from forerun.lab.train.held_out import EngineRun
from forerun.lab.train.learners import Learner
from forerun.lab.train.replies import Reply, of_text
from forerun.lab.train.simulated import Acceptance
from forerun.lab.train.states import StateReader
from forerun.lab.train.trainer import Progress, Trainer, TrainSettings
from forerun.llm import LLM

MAX_REPLY = 1024
"""Tokens of a prompt and its reply; longer ones are left out."""
BYTES_A_NUMBER = 2


@dataclass(frozen=True, slots=True)
class Data:
    """What is learned from and measured on, and whose replies they are."""

    model: str
    vocabulary: str
    path: Path
    texts: list[Reply]
    train: list[Reply]
    held_out: list[Reply]
    ids: Tensor


def read_data(llm: LLM, answers: Path | None, texts: Sequence[Path], vocab: int) -> Data:
    """The store of replies and the texts. Raises ConfigError."""
    name = name_of(llm.path)
    path = answers or default_path(name)
    if not path.exists():
        raise ConfigError(f"{path} does not exist: make replies with forerun train data")
    vocabulary = fingerprint(llm.tokenizer)
    store = open_store(name, vocabulary, path)
    longest = min(llm.max_len, MAX_REPLY)
    found = [reply for reply in replies.of_store(store) if len(reply.tokens) <= longest]
    train, held_out = replies.split(found)
    ids = draft_ids(train, vocab, llm.model.config.vocab_size)
    windows = [window for each in texts for window in _windows(llm, each)]
    return Data(name, vocabulary, path, windows, train, held_out, ids)


def draft_ids(found: Sequence[Reply], num: int, vocab_size: int) -> Tensor:
    """The most frequent tokens of replies, ascending (n,) int64."""
    counts = Counter(token for reply in found for token in reply.tokens[reply.first :])
    ranked = [token for token, _ in counts.most_common(num)]
    return torch.tensor(sorted(token for token in ranked if token < vocab_size))


def new_trainer(
    llm: LLM,
    learner: Learner,
    data: Data,
    depth: int,
    settings: TrainSettings,
    hold_gb: float,
    out: Path,
    origin: Mapping[str, object],
) -> Trainer:
    """A run over the target's states, up to so many GB of them held."""
    read = StateReader(
        llm.model,
        learner.layers,
        whole=learner.piece is None,
        max_len=min(llm.max_len, MAX_REPLY),
        max_nbytes=round(hold_gb * 1e9),
    )
    return Trainer(learner, llm.model, data.ids, depth, settings, read, out, origin=origin)


def train(
    trainer: Trainer, data: Data, is_first: bool, draft: Callable[[], EngineRun] | None = None
) -> None:
    """Run to the end, with the time left on stderr; Ctrl-C writes a checkpoint and says how far it came.

    After each measurement `draft` runs the engine with the best weights so far.
    """
    done, interrupts = trainer.progress, Interrupts()
    try:
        with interrupts, console.counter("training", trainer.settings.tokens) as show:
            for done in trainer.run(data.texts, data.train, data.held_out):
                if is_first:
                    show(done.tokens)
                if is_first and "tau" in done.history[-1]:
                    _note(done, None if draft is None else draft())
                interrupts.check()
    except KeyboardInterrupt:
        if interrupts.is_between_steps:
            trainer.save()
        if is_first:
            left = f"{done.tokens} of {trainer.settings.tokens} tokens are learned"
            console.stderr().print(f"{left}; the same command goes on", style="dim")
        raise


class Interrupts:
    """Ctrl-C waits for the end of a step, so that the run goes on as it would have; a second one does not wait."""

    def __init__(self) -> None:
        self.is_between_steps = self._is_asked = False
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *_: object) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Between steps: raises KeyboardInterrupt if it was asked for."""
        if self._is_asked:
            self.is_between_steps = True
            raise KeyboardInterrupt

    def _note(self, *_: object) -> None:
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True


def _note(done: Progress, run: EngineRun | None) -> None:
    """A line on stderr for each measurement."""
    line = done.history[-1]
    alphas = " ".join(f"{line[key]:.3f}" for key in line if key.startswith("alpha_"))
    console.stderr().print(
        f"{done.tokens} tokens, {done.cpu_s:.0f} s of CPU: held-out tau {line['tau']:.3f}, at temperature 1 "
        f"{line['tau_sampled']:.3f} (in training {alphas}){f'; {run}' if run else ''}",
        style="dim",
    )


def record_of(
    trainer: Trainer,
    data: Data,
    measured: Mapping[str, object],
    command: str,
    run: EngineRun | None = None,
) -> dict[str, object]:
    """How the weights were made."""
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


def draw(trainer: Trainer, model: str) -> None:
    """Loss and accept length over the run, beside its metrics.csv; a line on stderr without matplotlib."""
    try:
        history, folder = trainer.progress.history, trainer.folder
        draw_run("training", history, folder, folder.name, title=model)
    except (ConfigError, OSError) as error:
        console.stderr().print(f"no plot: {error}", style="dim")


def table(found: Mapping[str, Acceptance], depth: int, run: EngineRun) -> Any:
    """Of what was measured, by domain."""
    columns = (
        "domain",
        "tau",
        *(f"guess {i + 1}" for i in range(depth)),
        "tau at 1",
        "alpha",
        "tau in the engine",
    )
    lines = [
        (
            name,
            f"{a.tau:.3f}",
            *(f"{m:.3f}" for m in a.match),
            f"{a.tau_sampled:.3f}",
            f"{a.alpha[0]:.3f}",
            f"{run.tau[name]:.3f}",
        )
        for name, a in found.items()
    ]
    return console.table(columns, lines)


def say_needs(trainer: Trainer, data: Data) -> None:
    """What is there and what it will take, before it starts."""
    train, texts, held_out = data.train, data.texts, data.held_out
    rows = lengths([*texts, *train], trainer.depth)
    width = trainer.target.config.hidden_size * (1 + len(trainer.learner.layers))
    seen = sum(len(r.tokens) - (0 if trainer.read.whole else r.first - 1) for r in (*train, *texts))
    weights = sum(weight.numel() for weight in trainer.learner.net.parameters())
    disk_mb = weights * (4 * 3 + BYTES_A_NUMBER) / 1e6
    memory = min(seen * (BYTES_A_NUMBER * width + 12), trainer.read.max_nbytes)
    console.stderr().print(
        f"{len(train)} replies{f' and {len(texts)} windows of text' if texts else ''}, {rows} tokens to learn from "
        f"({trainer.settings.tokens / max(rows, 1):.1f} epochs), {len(held_out)} replies held out; "
        f"{weights / 1e6:.2f} M weights; at most {disk_mb:.0f} MB on disk, {memory / 1e9:.1f} GB of states in memory",
        style="dim",
    )


def _windows(llm: LLM, path: Path) -> list[Reply]:
    """A text file's windows, as long as replies."""
    tokens = llm.encode(read_text(path))
    found = list(of_text(path.name, tokens, MAX_REPLY // 2))
    if not found:
        raise ConfigError(f"{path} holds no text to learn from")
    return found


def has_bf16() -> bool:
    """Whether the processor multiplies bf16 itself; emulated it would be slower than fp32."""
    return bool(torch.cpu._is_avx512_bf16_supported())


@contextmanager
def processes() -> Iterator[bool]:
    """Join the other processes of `torchrun`, if there are any; whether this is the first."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    distributed.init_process_group("gloo")
    try:
        yield distributed.get_rank() == 0
    finally:
        distributed.destroy_process_group()
