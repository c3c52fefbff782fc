"""`forerun train draft-model`: a draft cut out of its target, aligned with the target's replies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab.commands import _training as shared

RATE = 0.005
"""Of Muon: the weights are not new, so a step is small."""


@opt.command()
@opt.engine(without=(*opt.DRAFTER, "controller"), max_model_len=2048)
@shared.training
@click.option("--from", "source", help="A smaller model of the same vocabulary to cut it from.")
@click.option("--max-cost", default=0.08, help="Of a step of the draft, as a share of a pass.")
@click.option("--layers", default=0, help="Layers to keep; 0: as many as --max-cost allows.")
@click.option("--depth", default=3, help="Tokens of a draft to measure with.")
@click.option("--lr", default=RATE, type=float, help="Rate of Muon.")
@click.option("--batch", default=2048, help="Tokens of a step.")
@click.option("--seed", default=0, help="Of the order.")
@opt.as_json
@click.pass_context
def command(
    context: click.Context,
    config: EngineConfig,
    answers: Path | None,
    source: str | None,
    text: tuple[Path, ...],
    tokens: str,
    max_cost: float,
    layers: int,
    depth: int,
    vocab: int,
    loss: str,
    lr: float,
    batch: int,
    seed: int,
    eval_every: str,
    patience: int,
    states_gb: float,
    out: Path | None,
    as_json: bool,
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
        llm = shared.load(config)
        sibling = llm.model if source is None else load(Options(model=source), llm.target())
        shape = draft_model.shape_for(sibling.config, llm.model.config, vocab, layers, max_cost)
        data = session.read_data(llm, answers, text, vocab)
        path = llm.path if source is None else resolve(source)
        checkpoint = open_checkpoint(path)
        weights = draft_model.weights_of(checkpoint, shape.layers)
        num_tokens = sum(reply.num_learned for reply in data.train)
        learner = draft_model.DraftModelLearner(
            sibling, depth, shape, weights, checkpoint, num_tokens
        )
        origin = {"from": name_of(path), **asdict(shape)}
        folder = out or data.path.with_name(f"{data.model}.draft_model")
        trainer = session.new_trainer(llm, learner, data, settings, states_gb, folder, origin)
        shared.train(context, llm, trainer, data, is_first=is_first, as_json=as_json)
