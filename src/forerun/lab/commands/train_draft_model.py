"""`forerun train draft-model`: a draft cut out of its target, aligned with what the target says."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab.commands import _training as shared

if TYPE_CHECKING:
    from forerun.lab.train.draft_model import DraftModelLearner
    from forerun.lab.train.session import Data
    from forerun.lab.train.trainer import Trainer
    from forerun.llm import LLM
    from forerun.weights.checkpoint import Checkpoint

RATE = 0.005
"""Of Muon: the weights are not new, so a step is small."""
QUANT: Literal["int8"] = "int8"
"""The draft is measured with: its file is fp16."""


@opt.engine(without=(*opt.DRAFTER, "controller"), max_model_len=2048)
def command(
    context: typer.Context,
    config: EngineConfig,
    answers: Path | None = shared.ANSWERS,
    source: str | None = typer.Option(
        None, "--from", help="A smaller model of the same vocabulary to cut it from."
    ),
    text: list[Path] | None = shared.TEXT,
    tokens: str = shared.TOKENS,
    max_cost: float = typer.Option(0.08, help="Of a step of the draft, as a share of a pass."),
    layers: int = typer.Option(0, help="Layers to keep; 0: as many as --max-cost allows."),
    depth: int = typer.Option(3, help="Tokens of a draft to measure with."),
    vocab: int = shared.VOCAB,
    loss: str = shared.LOSS,
    lr: float = typer.Option(RATE, help="Rate of Muon."),
    batch: int = typer.Option(2048, help="Tokens of a step."),
    seed: int = typer.Option(0, help="Of the order."),
    eval_every: str = shared.EVAL_EVERY,
    patience: int = shared.PATIENCE,
    hold_gb: float = shared.HOLD_GB,
    out: Path | None = shared.OUT,
    as_json: opt.Json = False,
) -> None:
    """Make a small draft of a model: some layers of it, or of a sibling, trained on its replies. Ctrl-C loses nothing.

    The folder is a draft: -d draft_model:model=FOLDER. It names the model's folder below it by its full path.
    """
    from forerun.core.errors import ConfigError
    from forerun.drafters.draft_model import Options, load
    from forerun.hub.names import name_of, resolve
    from forerun.lab.train import draft_model, session
    from forerun.weights.checkpoint import open_checkpoint

    for name, value in (("depth", depth), ("draft-vocab", vocab), ("batch", batch)):
        opt.check_least(f"--{name}", value, 1)
    if not 0 < max_cost < 1:
        raise ConfigError(f"--max-cost must be between 0 and 1, got {max_cost}")
    settings = shared.settings_of(
        *(tokens, eval_every, loss, text), batch=batch, lr=lr, patience=patience, seed=seed
    )
    with session.processes() as is_first:
        llm = opt.load(config, controller=False)
        sibling = llm.model if source is None else load(Options(model=source), llm.target())
        shape = draft_model.shape_for(sibling.config, llm.model.config, vocab, layers, max_cost)
        data = session.read_data(llm, answers, text or (), vocab)
        path = llm.path if source is None else resolve(source)
        checkpoint = open_checkpoint(path)
        weights = draft_model.weights_of(checkpoint, shape.layers)
        learner = draft_model.DraftModelLearner(sibling, depth, shape, weights)
        origin = {"model": data.model, "from": name_of(path), "vocabulary": data.vocabulary}
        origin |= asdict(shape)
        folder = out or data.path.with_name(f"{data.model}.draft_model")
        trainer = session.new_trainer(llm, learner, data, depth, settings, hold_gb, folder, origin)
        if is_first:
            session.say_needs(trainer, data)
        session.train(trainer, data, is_first)
        if is_first:
            _finish(llm, trainer, learner, data, checkpoint, shared.command_of(context), as_json)


def _finish(
    llm: LLM,
    trainer: Trainer,
    learner: DraftModelLearner,
    data: Data,
    checkpoint: Checkpoint,
    command: str,
    as_json: bool,
) -> None:
    """Measure the best weights, write the folder and how it was made, and show the figures."""
    from forerun.cli import console
    from forerun.core.errors import ForerunError
    from forerun.drafters.draft_model import Options, load
    from forerun.lab.train import draft_model, held_out, session, simulated, trained, trim

    folder, shape, depth = trainer.folder, learner.shape, trainer.depth
    learner.net.load_state_dict(trainer.best)
    parts = trainer.measure(data.held_out)
    found = simulated.by_domain(parts)
    num_tokens = sum(reply.num_learned for reply in data.train)
    named = (data.vocabulary, num_tokens, data.model)
    try:
        draft_model.write(folder, checkpoint, trainer.best, data.ids, *named)
        small = load(Options(model=str(folder / draft_model.MODEL), quant=QUANT), llm.target())
        cost = draft_model.measured_cost(llm.model, small, data.ids)
        gain = trim.mbsu(found["all"].tau, shape.cost, depth)
        figures = {"cost": shape.cost, "measured_cost": cost, "mbsu": gain}
        measured = figures | {n: asdict(a) for n, a in found.items()}
        options = {"model": str(folder), "num_draft": depth, "quant": QUANT}
        run = held_out.measure(llm, data.held_out, "draft_model", **options)
        record = session.record_of(trainer, data, measured, command, run)
        trained.write_record(folder, record, trainer.progress.history)
    except OSError as error:
        raise ForerunError(f"{folder} cannot be written: {error}") from error
    session.draw(trainer, data.model)
    if as_json:
        console.print_json({"drafter": str(folder), **record})
        return
    report = console.report()
    report.print(session.table(found, depth, run))
    report.print(
        f"layers {', '.join(map(str, shape.layers))}; a step reads {shape.cost:.3f} of a pass's weights and takes "
        f"{cost:.3f} of its CPU time in {QUANT}; with {depth} tokens tau {found['all'].tau:.3f}, memory-bound "
        f"speed-up {gain:.2f}; {run}; {record['cpu_s']} s of CPU"
    )
    report.print(
        f"{folder}: use it with -d draft_model:model={folder},num_draft={depth},quant={QUANT}"
    )
