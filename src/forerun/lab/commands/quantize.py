"""`forerun quantize`: round a model's weights and write it as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.core.config import DEFAULT_MODEL
from forerun.core.errors import ConfigError, unknown
from forerun.lab.commands._training import device_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forerun.lab.quantize.flatten import Kind
    from forerun.lab.quantize.job import QuantizeJob
    from forerun.lab.quantize.round_job import Recipe
    from forerun.weights.checkpoint import Checkpoint


BOUND = 0.02
"""Nats."""


@opt.command()
@opt.argument("word", required=False, metavar="[MODEL]", help="The model, instead of --model.")
@click.option(
    "-m", "--model", default=DEFAULT_MODEL, help="A GGUF file, a Hugging Face folder, or a name."
)
@click.option(
    "--method",
    default="awq+gptq",
    help="awq, gptq, both (awq+gptq) or flatten, which need --calib, or rtn: round to nearest.",
)
@click.option(
    "--clip/--no-clip",
    default=None,
    help="awq: cut the ranges of groups where that errs less; default: yes.",
)
@click.option("--bits", type=int, help="Of a weight: 3, 4 or 8; default: 4. flatten chooses.")
@click.option(
    "--group",
    help="Weights that share a scale: 32, 64, 128 or channel; default: 128, or what divides all widths.",
)
@click.option("--format", help="awq or compressed-tensors; default: awq where it holds the result.")
@click.option(
    "--bound",
    type=float,
    help="flatten: nats that flattened matrices may cost together; default: 0.02.",
)
@click.option(
    "--scale",
    help="flatten: of inputs. row: each row's own, after a Hadamard transform; tensor: one for all, as published; "
    "auto: what errs less. Default: row.",
)
@click.option("--calib", type=opt.PATH, help="Text of the kind the model will read, UTF-8.")
@click.option("--calib-tokens", default=16384, help="Tokens of it to calibrate on.")
@click.option(
    "--eval",
    "eval_text",
    type=opt.PATH,
    help="Text for the perplexities of the report; default: the rest of --calib.",
)
@click.option(
    "--device", default="cpu", help="cpu, or cuda where torch has one; not with --method flatten."
)
@click.option("-t", "--threads", type=int, help="CPU threads; default: physical cores.")
@click.option("-o", "--out", type=opt.PATH, help="The new folder.")
@opt.as_json
def command(
    word: str | None,
    model: str,
    method: str,
    bits: int | None,
    group: str | None,
    format: str | None,
    bound: float | None,
    scale: str | None,
    clip: bool | None,
    calib: Path | None,
    calib_tokens: int,
    eval_text: Path | None,
    device: str,
    threads: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Round a model's weights to few bits, and write it as a Hugging Face folder that other engines read too.

    Block by block, so that a small machine can round a large model. Ctrl-C loses nothing: the same command goes on. The
    report at the end has the perplexity before and after, and the error of each kind of matrix. With --device cuda
    blocks are computed and rounded there; the same command goes on with another --device.
    """
    from forerun.hub.names import resolve

    device = device_of(device)  # before torch is imported
    from forerun.lab.quantize import report
    from forerun.lab.quantize.flatten_job import FlattenJob
    from forerun.lab.quantize.round_job import RoundJob
    from forerun.lab.torch.backend import set_threads
    from forerun.weights.checkpoint import open_checkpoint

    set_threads(threads)
    if out is None:
        raise ConfigError("name the new folder: -o DIR")
    opt.check_least("calib_tokens", calib_tokens, report.TEXT_TOKENS)
    model = word or model
    checkpoint = open_checkpoint(resolve(model))
    given: dict[str, object] = {"bits": bits, "group": group, "format": format}
    what: dict[str, object]
    if method == "flatten":
        given["device"] = None if device == "cpu" else device
        _refuse(given, "has no meaning for --method flatten")
        kinds = _kinds(scale)
        what = {"method": method, "bound": _bound(bound), "scale": "+".join(kinds)}
    else:
        _refuse({"bound": bound, "scale": scale}, "is for --method flatten")
        recipe = _recipe(checkpoint, method, 4 if bits is None else bits, group, format, clip)
        what = recipe.described()
    calibration, held_out = report.texts_of(checkpoint, calib, eval_text, calib_tokens)
    if method == "rtn":
        calibration = []
    given_job = (checkpoint, calibration, held_out, out)
    origin = _origin(checkpoint, what, (calibration, held_out))
    job: QuantizeJob
    if method == "flatten":
        job = FlattenJob(*given_job, origin, bound=_bound(bound), kinds=kinds)
    else:
        job = RoundJob(*given_job, origin, recipe=recipe, device=device)
    stated = report.state(job, what, is_shown=not as_json)
    report.run(job, {"model": model, **what, "out": str(out)}, stated, as_json=as_json)


def _origin(
    checkpoint: Checkpoint, what: Mapping[str, object], texts: Iterable[Sequence[Sequence[int]]]
) -> dict[str, object]:
    """Return what a result depends on."""
    path = checkpoint.path
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return {
        "model": str(path.resolve()),
        "files": [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files],
        "recipe": what,
        "texts": [hash(tuple(map(tuple, each))) for each in texts],
    }


def _recipe(
    checkpoint: Checkpoint,
    method: str,
    bits: int,
    group: str | None,
    format: str | None,
    clip: bool | None,
) -> Recipe:
    from forerun.lab.quantize.block import input_widths
    from forerun.lab.quantize.grid import grid_for
    from forerun.lab.quantize.hf_layouts import layout_for
    from forerun.lab.quantize.round_job import METHODS, Recipe
    from forerun.model.loader import read_config

    if method != "awq" and clip is not None:
        raise ConfigError(f"--{'' if clip else 'no-'}clip is for --method awq: leave it out")
    if method not in METHODS:
        raise ConfigError(unknown("method", method, (*METHODS, "flatten")))
    config, _ = read_config(checkpoint)
    grid = grid_for(bits, group, input_widths(config))
    layout = layout_for(format, bits, grid.group)
    return Recipe(method, grid, layout, clip=clip is not False)


def _refuse(given: Mapping[str, object], why: str) -> None:
    for key, value in given.items():
        if value is not None:
            raise ConfigError(f"--{key} {value} {why}: leave it out")


def _kinds(scale: str | None) -> Sequence[Kind]:
    from forerun.lab.quantize.flatten import KINDS

    allowed = {kind: (kind,) for kind in KINDS} | {"auto": KINDS, None: ("row",)}
    if scale not in allowed:
        raise ConfigError(unknown("scale", str(scale), (*KINDS, "auto")))
    return allowed[scale]


def _bound(given: float | None) -> float:
    if given is not None and not given >= 0:
        raise ConfigError(f"--bound is {given:g}, but must not be negative")
    return BOUND if given is None else given
