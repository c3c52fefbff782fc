"""What the commands that train have in common: options, settings, and how the same is made again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli import options as opt
from forerun.cli.command import MODEL
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, unknown
from forerun.hub.names import name_of
from forerun.lab.output import publish

if TYPE_CHECKING:
    from forerun.lab.train.session import Data
    from forerun.lab.train.trainer import Trainer, TrainSettings
    from forerun.llm import LLM

NOT_REPEATED = ("model", MODEL, "out", "as_json")
"""Options left out of the command that reproduces a run."""
OTHER_MODELS = ("sibling", "source")
"""Parameters that are models, of which the name is repeated."""
TEXT_SHARE, REPLY_SHARE = 5, 2
"""Steps on texts and on replies, as the MLP speculator was published."""
LOSSES = ("kl", "lk", "ce", "kl+lk", "token")


def training(function: opt.Function) -> opt.Function:
    """Give a command the options of every training."""
    options = [
        click.option(
            "--answers",
            type=opt.PATH,
            help="Replies of forerun train data; default: where it puts them.",
        ),
        click.option(
            "--text",
            multiple=True,
            type=opt.PATH,
            help="Text to begin with, for 5 of 7 steps; may be given again.",
        ),
        click.option(
            "--tokens", default="3M", help="Tokens to learn from, seen again ones included."
        ),
        click.option(
            "--draft-vocab", "vocab", default=4096, help="Most frequent tokens that it may guess."
        ),
        click.option(
            "--loss",
            default="kl+lk",
            help="kl, lk, ce; kl+lk: KL, then LK-hybrid; token: cross-entropy of the text's own tokens.",
        ),
        click.option("--eval-every", default="100k", help="Tokens between measurements."),
        click.option(
            "--patience", default=8, help="Stop after so many without a gain; 0 for never."
        ),
        click.option(
            "--states-gb",
            default=4.0,
            help="Disk for the model's states; 0 computes them again each epoch.",
        ),
        click.option("-o", "--out", type=opt.PATH, help="Folder; default: beside the replies."),
    ]
    return opt.with_options(function, options)


def settings_of(
    tokens: str, eval_every: str, loss: str, text: Sequence[Path], device: str, **given: Any
) -> TrainSettings:
    """Read counts, and check what has few values. Raises ConfigError."""
    from forerun.lab.train.session import has_bf16
    from forerun.lab.train.trainer import TrainSettings

    return TrainSettings(
        tokens=count_of("--tokens", tokens),
        stages=(TEXT_SHARE, REPLY_SHARE) if text else (0, 1),
        loss=check_choice("loss", loss, LOSSES),  # type: ignore[arg-type]
        eval_every=count_of("--eval-every", eval_every),
        bf16=has_bf16(device),
        **given,
    )


def device_of(name: str) -> str:
    """Return the device to learn on. Raises ConfigError that names the CPU if there is no such device."""
    from forerun.system.device import choose_device, let_threads_sleep

    let_threads_sleep()  # before torch is imported
    device = choose_device(name)
    if device != "cpu":
        from forerun.lab.torch.backend import missing_device

        if device == "cuda" and (rank := os.environ.get("LOCAL_RANK")):
            device = f"cuda:{rank}"  # each of torchrun's processes has its own
        if problem := missing_device(device):
            raise ConfigError(problem)
    return device


def load(config: EngineConfig) -> LLM:
    """Load the model that is learned from, as it will be served: on the CPU, whatever device learns.

    From now on torch, if it is installed, has as many threads.
    """
    from forerun.system.device import let_threads_sleep, torch_problem

    let_threads_sleep()
    llm = opt.load(config, controller=False, device="cpu")
    if torch_problem() is None:
        from forerun.lab.torch.backend import set_threads

        set_threads(llm.model.num_threads)
    return llm


def count_of(option: str, text: str) -> int:
    """Read the count of an option, such as 300, 200k or 5M."""
    scale = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    digits = text[:-1] if scale > 1 else text
    try:
        value = round(float(digits) * scale)
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise ConfigError(f"{option} must be a count such as 200k or 5M, got {text!r}")
    return value


def check_choice(name: str, given: str, allowed: Sequence[str]) -> str:
    """Return a value that is among those allowed. Raises ConfigError."""
    if given not in allowed:
        raise ConfigError(unknown(f"--{name}", given, allowed))
    return given


def leave_out(context: click.Context, names: Sequence[str], *, because: str) -> None:
    """Raise ConfigError if one of these options was given."""
    for option in context.command.params:
        if option.name in names and is_given(context, str(option.name)):
            raise ConfigError(f"{because} decides {max(option.opts, key=len)} itself: leave it out")


def train(
    context: click.Context, llm: LLM, trainer: Trainer, data: Data, *, is_first: bool, as_json: bool
) -> None:
    """Run to the end, and show what came of it; nothing but the first process of `torchrun` speaks."""
    from forerun.lab.train import session

    if results := session.run(llm, trainer, data, command_of(context), is_first=is_first):
        document = {"drafter": str(trainer.folder), **results[0]}
        publish(document, lambda: session.show(trainer, *results), as_json=as_json)


def command_of(context: click.Context) -> str:
    """Return the command that repeats the run, of the options that were given; of paths the last part only."""
    words = ["forerun", *context.command_path.split()[1:], "-m", "MODEL"]
    for option in context.command.params:
        name = str(option.name)
        if getattr(option, "field", name) in NOT_REPEATED or not is_given(context, name):
            continue
        value, flag = context.params[name], max(option.opts, key=len)
        if isinstance(value, bool):
            words.append(flag if value else max(option.secondary_opts, key=len))
            continue
        if name in OTHER_MODELS:
            value = name_of(Path(value))
        for each in value if isinstance(value, list | tuple) else (value,):
            words += [flag, each.name if isinstance(each, Path) else str(each)]
    return shlex.join(words)


def is_given(context: click.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
