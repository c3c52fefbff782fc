"""`forerun train draft-model`: a draft cut out of its target, or of a shape of its own, aligned with its replies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab.commands import _training as shared

RATE, NEW_RATE = 0.005, 0.02
"""Of Muon: weights that are not new take small steps."""


@opt.command()
@opt.engine(without=(*opt.DRAFTER, "controller"), max_model_len=2048)
@shared.training
@click.option("--from", "source", help="A smaller model of the same vocabulary to cut it from.")
@click.option("--max-cost", default=0.08, help="Of a step of the draft, as a share of a pass.")
@click.option("--layers", default=0, help="Layers to keep; 0: as many as --max-cost allows.")
@click.option("--hidden", default=0, help="Width of a draft of its own shape, with random weights.")
@click.option("--heads", default=0, help="Attention heads with --hidden; 0: one for each 64 of it.")
@click.option("--depth", default=3, help="Tokens of a draft to measure with.")
@click.option("--lr", type=float, help=f"Rate of Muon; default {RATE}, with --hidden {NEW_RATE}.")
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
    hidden: int,
    heads: int,
    depth: int,
    vocab: int,
    loss: str,
    lr: float | None,
    batch: int,
    seed: int,
    eval_every: str,
    patience: int,
    states_gb: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """Make a small draft of a model: some layers of it, or of a sibling, trained on its replies. Ctrl-C loses nothing.

    With --hidden and --layers it has a shape of its own and begins with random weights: give --text, too.

    With --device cuda it is trained there; the same command goes on with another --device.

    The folder is a draft: -d draft_model:model=FOLDER. It names the model's folder below it by its full path.
    """
    from forerun.core.errors import ConfigError
    from forerun.drafters.draft_model import Options, load
    from forerun.hub.names import name_of, resolve
    from forerun.lab.train import draft_model, new_draft, session
    from forerun.weights.checkpoint import open_checkpoint

    for name, value in (("depth", depth), ("draft-vocab", vocab), ("batch", batch)):
        opt.check_least(f"--{name}", value, 1)
    if not 0 < max_cost < 1:
        raise ConfigError(f"--max-cost must be between 0 and 1, got {max_cost}")
    if hidden:
        shared.leave_out(context, ("source", "max_cost"), because="--hidden makes a new draft")
    elif heads:
        raise ConfigError("--heads needs --hidden, the width of a draft of its own shape")
    rate = (NEW_RATE if hidden else RATE) if lr is None else lr
    device = shared.device_of(config.device)
    settings = shared.settings_of(
        *(tokens, eval_every, loss, text, device),
        batch=batch,
        lr=rate,
        patience=patience,
        seed=seed,
    )
    with session.processes(device) as is_first:
        llm = shared.load(config)
        target, path = llm.model.config, llm.path if source is None else resolve(source)
        origin: dict[str, object] = {"from": name_of(path)}
        if hidden:
            own = new_draft.config_of(target, hidden, layers, heads or -(-hidden // 64))
            shape = new_draft.shape_of(own, target, vocab)
            origin = {"hidden": hidden, "heads": own.num_heads}
        else:
            sibling = llm.model if source is None else load(Options(model=source), llm.target())
            shape = draft_model.shape_for(sibling.config, target, vocab, layers, max_cost)
        data = session.read_data(llm, answers, text, vocab)
        num_tokens = sum(reply.num_learned for reply in data.train)
        checkpoint = open_checkpoint(path)
        learner: draft_model.DraftModelLearner
        if hidden:
            learner = new_draft.NewDraftLearner(
                llm.model, depth, own, shape, checkpoint, num_tokens, seed
            )
        else:
            weights = draft_model.weights_of(checkpoint, shape.layers)
            learner = draft_model.DraftModelLearner(
                sibling, depth, shape, weights, checkpoint, num_tokens
            )
        origin |= asdict(shape)
        out = out or data.path.with_name(f"{data.model}.draft_model")
        trainer = session.new_trainer(llm, learner, data, settings, states_gb, out, origin, device)
        shared.train(context, llm, trainer, data, is_first=is_first, as_json=as_json)
