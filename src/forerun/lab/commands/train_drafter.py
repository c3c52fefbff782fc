"""`forerun train drafter`: a small network that drafts for its target, trained on the target's own replies."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.lab.commands import _training as shared

RATES = {"muon": 0.02, "adamw": 0.001}
OF_A_KIND = (
    *("kind", "depth", "cell", "inner", "head_layers", "for_gguf"),
    *("untied", "own_embedding", "own_head", "zero_tokens"),
)
"""Options that a trained drafter has decided already."""
LEAST = {
    "depth": 1,
    "vocab": 1,
    "batch": 1,
    "head_layers": 1,
    "stage2_batch": 0,
    "stage2_length": 0,
}
"""Of the options that are counts."""
SHARES = ("stage2_rate", "step_weight")
"""Options from 0 to 1."""


@opt.command()
@opt.engine(without=(*opt.DRAFTER, "controller"), max_model_len=2048)
@click.option("--kind", default="mlp_speculator", help="mlp_speculator, eagle3 or medusa.")
@shared.training
@click.option(
    "--from",
    "begin",
    type=opt.PATH,
    help="Go on with a drafter: a folder, or auto for the one that drafts by default. Kind and sizes are its own, its "
    "draft vocabulary too unless --draft-vocab is given.",
)
@click.option(
    "--from-model",
    "sibling",
    help="The model that --from drafts for, if it is another one with the same tokenizer: the network is moved to "
    "this one first, in minutes.",
)
@click.option("--depth", default=3, help="Tokens of a draft to train for.")
@click.option("--cell", default="lstm", help="Of mlp_speculator: lstm (Arctic's) or mlp (IBM's).")
@click.option(
    "--inner", default=0, help="Width of mlp_speculator, or of eagle3's MLP; 0 is the model's."
)
@click.option("--head-layers", default=1, help="Blocks of each head of medusa.")
@click.option(
    "--gguf",
    "for_gguf",
    is_flag=True,
    help="eagle3 with the norms that llama.cpp has, to export as GGUF.",
)
@click.option("--untied", is_flag=True, help="Of --cell mlp: weights of its own for each step.")
@click.option(
    "--own-embedding", is_flag=True, help="Of mlp_speculator: vectors of its own for tokens."
)
@click.option(
    "--own-head",
    is_flag=True,
    help="Of mlp_speculator: rows of its own for the tokens of --draft-vocab; with --untied a head for each step.",
)
@click.option(
    "--zero-tokens",
    is_flag=True,
    help="Of mlp_speculator, for experiments: tokens add nothing, guesses follow from the state alone.",
)
@click.option(
    "--step-weight",
    default=0.8,
    help="Of each step's loss, as a share of the step's before; 1: all count the same.",
)
@click.option(
    "--stage2-rate",
    default=0.0,
    help="With --text: the rate starts again on the replies, at this share of --lr; 0: one rate over both.",
)
@click.option("--stage2-batch", default=0, help="Tokens of a step on the replies; 0: --batch.")
@click.option(
    "--stage2-length", default=0, help="Tokens of each reply to learn from, at most; 0: all."
)
@click.option("--optimizer", default="muon", help="muon or adamw.")
@click.option(
    "--lr",
    type=float,
    help="Rate; default 0.02 for muon, 0.001 for adamw, a quarter of it with --from.",
)
@click.option("--batch", default=256, help="Tokens of a step.")
@click.option("--seed", default=0, help="Of the first weights and the order.")
@click.option("--int8", is_flag=True, help="Write matrices as int8 codes: half of fp16.")
@opt.as_json
@click.pass_context
def command(
    context: click.Context,
    config: EngineConfig,
    kind: str,
    answers: Path | None,
    begin: Path | None,
    sibling: str | None,
    text: tuple[Path, ...],
    tokens: str,
    depth: int,
    vocab: int,
    cell: str,
    inner: int,
    head_layers: int,
    for_gguf: bool,
    untied: bool,
    own_embedding: bool,
    own_head: bool,
    zero_tokens: bool,
    step_weight: float,
    stage2_rate: float,
    stage2_batch: int,
    stage2_length: int,
    loss: str,
    optimizer: str,
    lr: float | None,
    batch: int,
    seed: int,
    eval_every: str,
    patience: int,
    states_gb: float,
    int8: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Train a drafter on the model's own replies. Ctrl-C loses nothing: the same command goes on where it was.

    `forerun train data` makes the replies: to 100 prompts at least; 100k tokens are a beginning, 1M what a good drafter
    takes. Under `torchrun` several processes share the work. With --device cuda the model's states, the losses and the
    steps are computed there, of the weights as they are stored; the same command goes on with another --device.
    """
    import torch

    from forerun.hub.names import name_of
    from forerun.lab.train import networks, session
    from forerun.lab.train.learners import KINDS, Kind
    from forerun.lab.train.sibling import moved

    shared.check_choice("kind", kind, KINDS)
    if begin is not None:
        shared.leave_out(context, OF_A_KIND, because="--from")
    elif sibling is not None:
        raise ConfigError("--from-model says whose network --from is: give both")
    _check_ranges(context)
    device = shared.device_of(config.device)
    rate = RATES.get(optimizer, 0.0) * (1 if begin is None else networks.GOING_ON)
    settings = shared.settings_of(
        *(tokens, eval_every, loss, text, device),
        batch=batch,
        lr=lr if lr is not None else rate,
        optimizer=shared.check_choice("optimizer", optimizer, tuple(RATES)),
        patience=patience,
        stage2_rate=stage2_rate,
        stage2_batch=stage2_batch,
        stage2_length=stage2_length,
        step_weight=step_weight,
        seed=seed,
    )
    with session.processes(device) as is_first:
        llm = shared.load(config)
        data = session.read_data(llm, answers, text, vocab)
        torch.manual_seed(seed)
        if begin is None:
            of_speculator = {"tied": not untied, "own_embedding": own_embedding}
            of_speculator |= {"own_head": own_head, "zero_tokens": zero_tokens}
            what = Kind(kind, depth, cell, inner, head_layers, for_gguf=for_gguf, **of_speculator)
            learner = networks.new(llm, what, data.ids)
        else:
            old = llm if sibling is None else shared.load(replace(config, model=sibling))
            learner, what, ids = networks.trained(old.target(), begin)
            if old is not llm:
                learner, what = moved(learner, what, ids, (llm, old), data, states_gb)
            if what.own_head:
                shared.leave_out(context, ("vocab",), because="--from, as its head is its own,")
            if not shared.is_given(context, "vocab"):  # the head's rows are the target's: any do
                data = replace(data, ids=ids)
        learner.int8 = int8
        out = out or data.path.with_name(f"{data.model}.{what.name}")
        origin = {"kind": asdict(what)} | ({"from": begin.name} if begin else {})
        origin |= {"from_model": name_of(Path(sibling))} if sibling else {}
        trainer = session.new_trainer(llm, learner, data, settings, states_gb, out, origin, device)
        shared.train(context, llm, trainer, data, is_first=is_first, as_json=as_json)


def _check_ranges(context: click.Context) -> None:
    """Raise ConfigError if a count is too small, or a share none."""
    for option in context.command.params:
        name, flag = str(option.name), max(option.opts, key=len)
        value: Any = context.params.get(name)
        if name in LEAST:
            opt.check_least(flag, value, LEAST[name])
        if name in SHARES and not 0 <= value <= 1:
            raise ConfigError(f"{flag} must be from 0 to 1, got {value:g}")
