"""`forerun train drafter`: a small network that guesses what its target says, trained on the target's own replies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from forerun.llm import LLM
    from forerun.train.replies import Reply
    from forerun.train.simulated import SimulatedReply
    from forerun.train.trainer import Progress, Trainer

TEXT_SHARE, REPLY_SHARE = 5, 2
"""Steps on texts and on replies, as the MLP speculator was published."""
MAX_REPLY = 1024
"""Tokens of a prompt and its reply; longer ones are left out."""
BYTES_A_NUMBER = 2
RATES = {"muon": 0.02, "adamw": 0.001}
LOSSES = ("kl", "lk", "ce", "kl+lk")


@opt.engine(without=("drafter", "draft_model", "num_draft", "min_draft"), max_model_len=2048)
def command(
    config: EngineConfig,
    kind: Annotated[
        str, typer.Option("--kind", help="mlp_speculator, eagle3 or medusa.")
    ] = "mlp_speculator",
    answers: Annotated[
        Path | None,
        typer.Option(
            "--answers", help="Replies of forerun train data; default: where it puts them."
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", help="Text to begin with, for 5 of 7 steps; may be given again."),
    ] = None,
    tokens: Annotated[
        str, typer.Option("--tokens", help="Tokens to learn from, seen again ones included.")
    ] = "3M",
    depth: Annotated[int, typer.Option("--depth", help="Tokens of a draft to train for.")] = 3,
    vocab: Annotated[
        int, typer.Option("--draft-vocab", help="Most frequent tokens that it may guess.")
    ] = 4096,
    cell: Annotated[str, typer.Option("--cell", help="Of mlp_speculator: lstm or mlp.")] = "lstm",
    inner: Annotated[
        int, typer.Option("--inner", help="Width of mlp_speculator; 0 is the model's.")
    ] = 0,
    loss: Annotated[
        str, typer.Option("--loss", help="kl, lk, ce, or kl+lk: KL, then LK-hybrid.")
    ] = "kl+lk",
    optimizer: Annotated[str, typer.Option("--optimizer", help="muon or adamw.")] = "muon",
    lr: Annotated[
        float | None, typer.Option("--lr", help="Rate; default .02 for muon, .001 for adamw.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Tokens of a step.")] = 1024,
    seed: Annotated[int, typer.Option("--seed", help="Of the first weights and the order.")] = 0,
    eval_every: Annotated[
        str, typer.Option("--eval-every", help="Tokens between measurements.")
    ] = "100k",
    patience: Annotated[
        int, typer.Option("--patience", help="Stop after so many without a gain; 0 for never.")
    ] = 8,
    hold_gb: Annotated[
        float, typer.Option("--hold-gb", help="Memory for the model's states.")
    ] = 2.0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder; default: beside the replies.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Train a drafter on what the model says. Ctrl-C loses nothing: the same command goes on where it was.

    `forerun train data` makes the replies. Under `torchrun` several processes share the work.
    """
    import torch

    from forerun.cli.train_table import number
    from forerun.train.learners import KINDS, Kind, new_learner
    from forerun.train.states import StateReader
    from forerun.train.trainer import Trainer, TrainSettings

    _check("kind", kind, KINDS)
    for name, value in (("depth", depth), ("draft-vocab", vocab), ("batch", batch)):
        opt.check_least(f"--{name}", value, 1)
    settings = TrainSettings(
        tokens=number(tokens),
        stages=(TEXT_SHARE, REPLY_SHARE) if text else (0, 1),
        batch=batch,
        lr=lr if lr is not None else RATES.get(optimizer, 0.0),
        optimizer=_check("optimizer", optimizer, tuple(RATES)),  # type: ignore[arg-type]
        loss=_check("loss", loss, LOSSES),  # type: ignore[arg-type]
        eval_every=number(eval_every),
        patience=patience,
        seed=seed,
        bf16=_has_bf16(),
    )
    with _processes() as is_first:
        llm = opt.load(config)
        data = _read(llm, answers, text or (), vocab)
        torch.manual_seed(seed)
        what = Kind(kind, depth, cell, inner)
        weights = _last_layer(llm) if kind == "eagle3" else {}
        learner = new_learner(what, llm.model, data.ids, weights)
        read = StateReader(
            llm.model,
            learner.layers,
            whole=learner.piece is None,
            max_len=min(llm.max_len, MAX_REPLY),
            max_nbytes=round(hold_gb * 1e9),
        )
        out = out or data.path.with_name(f"{data.model}.{kind}")
        origin = {"model": data.model, "vocabulary": data.vocabulary, "kind": asdict(what)}
        trainer = Trainer(learner, llm.model, data.ids, depth, settings, read, out, origin=origin)
        if is_first:
            _say_needs(trainer, data)
        _train(trainer, data, is_first)
        if is_first:
            _report(trainer, data, as_json)


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


def _read(llm: LLM, answers: Path | None, texts: Sequence[Path], vocab: int) -> Data:
    """The store of replies and the texts. Raises ConfigError."""
    from forerun.drafters._table_file import fingerprint
    from forerun.formats.hub import name_of
    from forerun.train import replies
    from forerun.train.answers import default_path, open_store

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


def draft_ids(replies: Sequence[Reply], num: int, vocab_size: int) -> Tensor:
    """The most frequent tokens of replies, ascending (n,) int64."""
    import torch

    counts = Counter(token for reply in replies for token in reply.tokens[reply.first :])
    ranked = [token for token, _ in counts.most_common(num)]
    return torch.tensor(sorted(token for token in ranked if token < vocab_size))


def _train(trainer: Trainer, data: Data, is_first: bool) -> None:
    """Run to the end, with the time left on stderr; Ctrl-C writes a checkpoint and says how far it came."""
    from forerun.cli import _console as console

    done = trainer.progress
    try:
        with console.counter("training", trainer.settings.tokens) as show:
            for done in trainer.run(data.texts, data.train, data.held_out):
                if is_first:
                    show(done.tokens)
                if is_first and "tau" in done.history[-1]:
                    _write(trainer, data, None)
                    _note(done)
    except KeyboardInterrupt:
        trainer.save()
        if is_first:
            left = f"{done.tokens} of {trainer.settings.tokens} tokens are learned"
            console.stderr().print(f"{left}; the same command goes on", style="dim")
        raise


def _note(done: Progress) -> None:
    """A line on stderr for each measurement."""
    from forerun.cli import _console as console

    line = done.history[-1]
    alphas = " ".join(f"{line[key]:.3f}" for key in line if key.startswith("alpha_"))
    console.stderr().print(
        f"{done.tokens} tokens, {done.cpu_s:.0f} s of CPU: held-out tau {line['tau']:.3f}, at temperature 1 "
        f"{line['tau_sampled']:.3f} (in training {alphas})",
        style="dim",
    )


def _write(trainer: Trainer, data: Data, parts: Sequence[SimulatedReply] | None) -> None:
    """The best weights so far; with `parts`, what was measured of them."""
    from forerun.core.provenance import commit, now
    from forerun.train import simulated, trained

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
    record = trainer.origin | {
        "date": now(),
        "commit": commit(),
        "answers": data.path.name,
        "tokens": done.tokens,
        "best_tokens": done.best_tokens,
        "cpu_s": round(done.cpu_s),
        "target_tokens": trainer.read.num_computed,
        "held_out": measured,
    }
    trained.write(trainer.folder, config, trainer.best, trainer.ids, record, done.history)


def _report(trainer: Trainer, data: Data, as_json: bool) -> None:
    """Measure the best weights by domain, write them, and show both."""
    from forerun.cli import _console as console
    from forerun.train import simulated

    trainer.learner.net.load_state_dict(trainer.best)
    parts = trainer.measure(data.held_out)
    _write(trainer, data, parts)
    found = simulated.by_domain(parts)
    if as_json:
        rows = {name: asdict(each) for name, each in found.items()}
        console.print_json(
            trainer.origin
            | {"drafter": str(trainer.folder), "tokens": trainer.progress.tokens, "held_out": rows}
        )
        return
    columns = (
        "domain",
        "tau",
        *(f"guess {i + 1}" for i in range(trainer.depth)),
        "tau at 1",
        "alpha",
    )
    lines = [
        (
            name,
            f"{a.tau:.3f}",
            *(f"{m:.3f}" for m in a.match),
            f"{a.tau_sampled:.3f}",
            f"{a.alpha[0]:.3f}",
        )
        for name, a in found.items()
    ]
    report = console.report()
    report.print(console.table(columns, lines))
    kind = trainer.learner.config()["model_type"]
    report.print(f"{trainer.folder}: use it with -d {kind}:model={trainer.folder}")


def _say_needs(trainer: Trainer, data: Data) -> None:
    """What is there and what it will take, before it starts."""
    from forerun.cli import _console as console
    from forerun.train.batches import lengths

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
    from forerun.core.textfile import read_text
    from forerun.train.replies import of_text

    tokens = llm.encode(read_text(path))
    found = list(of_text(path.name, tokens, MAX_REPLY // 2))
    if not found:
        raise ConfigError(f"{path} holds no text to learn from")
    return found


def _last_layer(llm: LLM) -> dict[str, Tensor]:
    """The target's last layer and norm, fp32."""
    from forerun.formats.checkpoint import open_checkpoint
    from forerun.nn.loader import read_config, stored_weights

    checkpoint = open_checkpoint(llm.path)
    shape, arch = read_config(checkpoint)
    name = f"layers.{shape.num_layers - 1}."
    found = {}
    for key, stored in stored_weights(checkpoint, arch, shape):
        if key == "norm" or key.startswith(name):
            found[key] = stored.dequantize()
        stored.release()
    return found


def _check(name: str, given: str, allowed: Sequence[str]) -> str:
    from forerun.core.errors import unknown

    if given not in allowed:
        raise ConfigError(unknown(f"--{name}", given, allowed))
    return given


def _has_bf16() -> bool:
    """Whether the processor multiplies bf16 itself; emulated it would be slower than fp32."""
    import torch

    return bool(torch.cpu._is_avx512_bf16_supported())


@contextmanager
def _processes() -> Iterator[bool]:
    """Join the other processes of `torchrun`, if there are any; whether this is the first."""
    from torch import distributed

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    distributed.init_process_group("gloo")
    try:
        yield distributed.get_rank() == 0
    finally:
        distributed.destroy_process_group()
