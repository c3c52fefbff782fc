"""`forerun train drafter`: a small network that guesses what its target says, trained on the target's own replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab.commands import _held_out_run
from forerun.lab.commands._held_out_run import EngineRun
from forerun.lab.commands._training import (
    Data,
    check_choice,
    command_of,
    draw,
    has_bf16,
    new_trainer,
    processes,
    read_data,
    record_of,
    say_needs,
    table,
    train,
)

if TYPE_CHECKING:
    from torch import Tensor

    from forerun.lab.train.simulated import Acceptance, SimulatedReply
    from forerun.lab.train.trainer import Trainer
    from forerun.llm import LLM

TEXT_SHARE, REPLY_SHARE = 5, 2
"""Steps on texts and on replies, as the MLP speculator was published."""
RATES = {"muon": 0.02, "adamw": 0.001}
LOSSES = ("kl", "lk", "ce", "kl+lk")


@dataclass(frozen=True, slots=True)
class WrittenForm:
    """How a drafter is written, and the command that makes it."""

    command: str = ""
    int8: bool = False


@opt.engine(without=(*opt.DRAFTER, "controller"), max_model_len=2048)
def command(
    context: typer.Context,
    config: EngineConfig,
    kind: str = typer.Option("mlp_speculator", help="mlp_speculator, eagle3 or medusa."),
    answers: Path | None = typer.Option(
        None, help="Replies of forerun train data; default: where it puts them."
    ),
    text: list[Path] | None = typer.Option(
        None, help="Text to begin with, for 5 of 7 steps; may be given again."
    ),
    tokens: str = typer.Option("3M", help="Tokens to learn from, seen again ones included."),
    depth: int = typer.Option(3, help="Tokens of a draft to train for."),
    vocab: int = typer.Option(
        4096, "--draft-vocab", help="Most frequent tokens that it may guess."
    ),
    cell: str = typer.Option("lstm", help="Of mlp_speculator: lstm or mlp."),
    inner: int = typer.Option(
        0, help="Width of mlp_speculator, or of eagle3's MLP; 0 is the model's."
    ),
    head_layers: int = typer.Option(1, help="Blocks of each head of medusa."),
    for_gguf: bool = typer.Option(
        False, "--gguf", help="eagle3 with the norms that llama.cpp has, to export as GGUF."
    ),
    loss: str = typer.Option("kl+lk", help="kl, lk, ce, or kl+lk: KL, then LK-hybrid."),
    optimizer: str = typer.Option("muon", help="muon or adamw."),
    lr: float | None = typer.Option(None, help="Rate; default .02 for muon, .001 for adamw."),
    batch: int = typer.Option(1024, help="Tokens of a step."),
    seed: int = typer.Option(0, help="Of the first weights and the order."),
    eval_every: str = typer.Option("100k", help="Tokens between measurements."),
    patience: int = typer.Option(8, help="Stop after so many without a gain; 0 for never."),
    hold_gb: float = typer.Option(2.0, help="Memory for the model's states."),
    int8: bool = typer.Option(False, "--int8", help="Write matrices as int8 codes: half of fp16."),
    out: Path | None = typer.Option(
        None, "-o", "--out", help="Folder; default: beside the replies."
    ),
    as_json: opt.Json = False,
) -> None:
    """Train a drafter on what the model says. Ctrl-C loses nothing: the same command goes on where it was.

    `forerun train data` makes the replies: to 100 prompts at least; 100k tokens are a beginning, 1M what a good drafter
    takes. Under `torchrun` several processes share the work.
    """
    import torch

    from forerun.lab.commands.train_table import number
    from forerun.lab.train.learners import KINDS, Kind, new_learner
    from forerun.lab.train.trainer import TrainSettings

    check_choice("kind", kind, KINDS)
    form = WrittenForm(command_of(context), int8)
    for name, value in (
        ("depth", depth),
        ("draft-vocab", vocab),
        ("batch", batch),
        ("head-layers", head_layers),
    ):
        opt.check_least(f"--{name}", value, 1)
    settings = TrainSettings(
        tokens=number(tokens),
        stages=(TEXT_SHARE, REPLY_SHARE) if text else (0, 1),
        batch=batch,
        lr=lr if lr is not None else RATES.get(optimizer, 0.0),
        optimizer=check_choice("optimizer", optimizer, tuple(RATES)),  # type: ignore[arg-type]
        loss=check_choice("loss", loss, LOSSES),  # type: ignore[arg-type]
        eval_every=number(eval_every),
        patience=patience,
        seed=seed,
        bf16=has_bf16(),
    )
    with processes() as is_first:
        llm = opt.load(config, controller=False)
        data = read_data(llm, answers, text or (), vocab)
        torch.manual_seed(seed)
        what = Kind(kind, depth, cell, inner, head_layers, for_gguf)
        weights = last_layer(llm) if kind == "eagle3" else {}
        learner = new_learner(what, llm.model, data.ids, weights)
        out = out or data.path.with_name(f"{data.model}.{kind}")
        origin = {"model": data.model, "vocabulary": data.vocabulary, "kind": asdict(what)}
        trainer = new_trainer(llm, learner, data, depth, settings, hold_gb, out, origin)
        if is_first:
            say_needs(trainer, data)
        train(trainer, data, is_first, lambda: _try(llm, trainer, data, form))
        if is_first:
            _report(llm, trainer, data, form, as_json)


def _try(
    llm: LLM, trainer: Trainer, data: Data, form: WrittenForm, parts: Sequence[SimulatedReply] = ()
) -> EngineRun:
    """Write the best weights so far, and draft with them."""
    _write(trainer, data, form, parts)
    kind = str(trainer.learner.config()["model_type"])
    return _held_out_run.measure(llm, data.held_out, kind, model=str(trainer.folder))


def _write(
    trainer: Trainer,
    data: Data,
    form: WrittenForm,
    parts: Sequence[SimulatedReply] = (),
    run: EngineRun | None = None,
) -> None:
    """The best weights so far; with `parts` and `run`, what was measured of them."""
    from forerun.lab.train import simulated, trained

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
    trained.write(trainer.folder, *what, int8=form.int8)


def finish(
    llm: LLM, trainer: Trainer, data: Data, form: WrittenForm = WrittenForm()
) -> tuple[dict[str, Acceptance], EngineRun]:
    """Measure the best weights on all replies that are held out, and in the engine; write them, and what was found."""
    from forerun.lab.train import simulated

    trainer.learner.net.load_state_dict(trainer.best)
    parts = trainer.measure(data.held_out)
    run = _try(llm, trainer, data, form, parts)
    _write(trainer, data, form, parts, run)
    return simulated.by_domain(parts), run


def _report(llm: LLM, trainer: Trainer, data: Data, form: WrittenForm, as_json: bool) -> None:
    """Measure the best weights by domain, write them, and show both."""
    from forerun.cli import console

    found, run = finish(llm, trainer, data, form)
    draw(trainer, data.model)
    if as_json:
        rows = {name: asdict(each) for name, each in found.items()}
        console.print_json(
            trainer.origin
            | {"drafter": str(trainer.folder), "tokens": trainer.progress.tokens}
            | {"held_out": rows, "in_engine": asdict(run)}
        )
        return
    report = console.report()
    report.print(table(found, trainer.depth, run))
    report.print(str(run))
    kind = trainer.learner.config()["model_type"]
    report.print(f"{trainer.folder}: use it with -d {kind}:model={trainer.folder}")


def last_layer(llm: LLM) -> dict[str, Tensor]:
    """The target's last layer and norm, fp32."""
    from forerun.model.loader import read_config, stored_weights
    from forerun.weights.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(llm.path)
    shape, arch = read_config(checkpoint)
    name = f"layers.{shape.num_layers - 1}."
    found = {}
    for key, stored in stored_weights(checkpoint, arch, shape):
        if key == "norm" or key.startswith(name):
            found[key] = stored.dequantize()
        stored.release()
    return found
