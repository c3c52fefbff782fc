"""`forerun train drafter`: a small network that guesses what its target says, trained on the target's own replies."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab.commands import _training as shared

RATES = {"muon": 0.02, "adamw": 0.001}
GOING_ON = 0.25
"""Times the rate, for a trained drafter: at the whole one it unlearns in 100k tokens what 600k do not bring back."""
OF_A_KIND = ("kind", "depth", "vocab", "cell", "inner", "head_layers", "for_gguf")
"""Options that a trained drafter has decided already."""

Begin = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Go on with a drafter: a folder, or auto for the one that ships. Kind and sizes are its own.",
    ),
]
Kind = Annotated[str, typer.Option(help="mlp_speculator, eagle3 or medusa.")]
Depth = Annotated[int, typer.Option(help="Tokens of a draft to train for.")]
Cell = Annotated[str, typer.Option(help="Of mlp_speculator: lstm or mlp.")]
Inner = Annotated[
    int, typer.Option(help="Width of mlp_speculator, or of eagle3's MLP; 0 is the model's.")
]
HeadLayers = Annotated[int, typer.Option(help="Blocks of each head of medusa.")]
ForGguf = Annotated[
    bool,
    typer.Option("--gguf", help="eagle3 with the norms that llama.cpp has, to export as GGUF."),
]
Optimizer = Annotated[str, typer.Option(help="muon or adamw.")]
Lr = Annotated[
    float | None,
    typer.Option(help="Rate; default .02 for muon, .001 for adamw, a quarter of it with --from."),
]
Batch = Annotated[int, typer.Option(help="Tokens of a step.")]
Seed = Annotated[int, typer.Option(help="Of the first weights and the order.")]
Int8 = Annotated[bool, typer.Option("--int8", help="Write matrices as int8 codes: half of fp16.")]


@opt.engine(without=(*opt.DRAFTER, "controller"), max_model_len=2048)
def command(
    context: typer.Context,
    config: EngineConfig,
    kind: Kind = "mlp_speculator",
    answers: shared.Answers = None,
    begin: Begin = None,
    text: shared.Text = None,
    tokens: shared.Tokens = "3M",
    depth: Depth = 3,
    vocab: shared.Vocab = 4096,
    cell: Cell = "lstm",
    inner: Inner = 0,
    head_layers: HeadLayers = 1,
    for_gguf: ForGguf = False,
    loss: shared.Loss = "kl+lk",
    optimizer: Optimizer = "muon",
    lr: Lr = None,
    batch: Batch = 1024,
    seed: Seed = 0,
    eval_every: shared.EvalEvery = "100k",
    patience: shared.Patience = 8,
    states_gb: shared.StatesGb = 4.0,
    int8: Int8 = False,
    out: shared.Out = None,
    as_json: opt.Json = False,
) -> None:
    """Train a drafter on what the model says. Ctrl-C loses nothing: the same command goes on where it was.

    `forerun train data` makes the replies: to 100 prompts at least; 100k tokens are a beginning, 1M what a good drafter
    takes. Under `torchrun` several processes share the work.
    """
    import torch

    from forerun.lab.train import networks, session
    from forerun.lab.train.learners import KINDS, Kind

    shared.check_choice("kind", kind, KINDS)
    if begin is not None:
        shared.leave_out(context, OF_A_KIND, because="--from")
    counts = {"depth": depth, "draft-vocab": vocab, "batch": batch, "head-layers": head_layers}
    for name, value in counts.items():
        opt.check_least(f"--{name}", value, 1)
    rate = RATES.get(optimizer, 0.0) * (1 if begin is None else GOING_ON)
    settings = shared.settings_of(
        *(tokens, eval_every, loss, text),
        batch=batch,
        lr=lr if lr is not None else rate,
        optimizer=shared.check_choice("optimizer", optimizer, tuple(RATES)),
        patience=patience,
        seed=seed,
    )
    with session.processes() as is_first:
        llm = shared.load(config)
        data = session.read_data(llm, answers, text or (), vocab)
        torch.manual_seed(seed)
        if begin is None:
            what = Kind(kind, depth, cell, inner, head_layers, for_gguf)
            learner = networks.new(llm, what, data.ids)
        else:
            learner, what, ids = networks.trained(llm.target(), begin)
            data = replace(data, ids=ids)
        learner.int8 = int8
        out = out or data.path.with_name(f"{data.model}.{what.name}")
        origin = {"kind": asdict(what)} | ({"from": begin.name} if begin else {})
        trainer = session.new_trainer(llm, learner, data, settings, states_gb, out, origin)
        shared.train(context, llm, trainer, data, is_first=is_first, as_json=as_json)
