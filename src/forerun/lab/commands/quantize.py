"""`forerun quantize`: round a model's weights and write it as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli import options as opt
from forerun.core.config import DEFAULT_MODEL
from forerun.core.errors import ConfigError, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forerun.lab.quantize.flatten_job import FlattenRecipe
    from forerun.lab.quantize.job import QuantizeJob
    from forerun.lab.quantize.round_job import Recipe
    from forerun.weights.checkpoint import Checkpoint


@opt.command()
@click.option(
    "-m", "--model", default=DEFAULT_MODEL, help="A GGUF file, a Hugging Face folder, or a name."
)
@click.option(
    "--method", default="awq", help="awq or flatten (both need --calib), or rtn: round to nearest."
)
@click.option("--bits", type=int, help="Of a weight: 3, 4 or 8; default: 4, or flatten's choice.")
@click.option(
    "--group",
    help="Weights that share a scale: 32, 64, 128 or channel; default: 128, or what divides all widths.",
)
@click.option("--format", help="awq or compressed-tensors; default: awq where it holds the result.")
@click.option("--split", help="flatten: how a large input is spread, even or spill (default).")
@click.option("--widen", type=float, help="flatten: how much wider rows may become; default: 0.05.")
@click.option(
    "--row-bits", type=int, help="flatten: of activations where weights have 4; default: 8."
)
@click.option(
    "--bound",
    type=float,
    help="flatten: nats that flattened matrices may cost together; default: 0.01.",
)
@click.option(
    "--gptq/--no-gptq",
    default=None,
    show_default="on, but for rtn",
    help="Let columns make up for those rounded before them.",
)
@click.option("--calib", type=opt.PATH, help="Text of the kind the model will read, UTF-8.")
@click.option("--calib-tokens", default=16384, help="Tokens of it to calibrate on.")
@click.option(
    "--eval",
    "eval_text",
    type=opt.PATH,
    help="Text for the perplexities of the report; default: the rest of --calib.",
)
@click.option("-o", "--out", type=opt.PATH, help="The new folder.")
@opt.as_json
def command(
    model: str,
    method: str,
    bits: int | None,
    group: str | None,
    format: str | None,
    split: str | None,
    widen: float | None,
    row_bits: int | None,
    bound: float | None,
    gptq: bool | None,
    calib: Path | None,
    calib_tokens: int,
    eval_text: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Round a model's weights to few bits, and write it as a Hugging Face folder that other engines read too.

    Block by block, so that a small machine can round a large model. Ctrl-C loses nothing: the same command goes on. The
    report at the end has the perplexity before and after, and the error of each kind of matrix.
    """
    from forerun.hub.names import resolve
    from forerun.lab.quantize import report
    from forerun.lab.quantize.flatten_choice import FlattenChoice
    from forerun.lab.quantize.flatten_job import FlattenJob
    from forerun.lab.quantize.round_job import RoundJob
    from forerun.weights.checkpoint import open_checkpoint

    if out is None:
        raise ConfigError("name the new folder: -o DIR")
    opt.check_least("calib_tokens", calib_tokens, report.TEXT_TOKENS)
    checkpoint = open_checkpoint(resolve(model))
    recipe: Recipe | FlattenRecipe
    new_job: Callable[..., QuantizeJob] = RoundJob
    given = {"split": split, "widen": widen, "row_bits": row_bits, "bound": bound}
    options = {key: value for key, value in given.items() if value is not None}
    if method == "flatten":
        _refuse({"group": group, "format": format}, "has no meaning for --method flatten")
        recipe = _flatten_recipe(bits, options if gptq is None else options | {"gptq": gptq})
        new_job = FlattenChoice if recipe.bits is None else FlattenJob
    else:
        _refuse(options, "is for --method flatten")
        recipe = _recipe(checkpoint, method, 4 if bits is None else bits, group, format, gptq)
    calibration, held = report.texts_of(checkpoint, calib, eval_text, calib_tokens)
    if method == "rtn":
        calibration = []
    path = checkpoint.path
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    origin = {
        "model": str(path.resolve()),
        "files": [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files],
        "recipe": repr(recipe),
        "texts": [hash(tuple(map(tuple, texts))) for texts in (calibration, held)],
    }
    what = recipe.described()
    job = new_job(checkpoint, calibration, held, out, origin, recipe=recipe)
    stated = report.state(job, what, is_shown=not as_json)
    report.run(job, {"model": model, **what, "out": str(out)}, stated, as_json=as_json)


def _recipe(
    checkpoint: Checkpoint,
    method: str,
    bits: int,
    group: str | None,
    format: str | None,
    gptq: bool | None,
) -> Recipe:
    from forerun.lab.quantize.block import input_widths
    from forerun.lab.quantize.grid import grid_for
    from forerun.lab.quantize.hf_layouts import layout_for
    from forerun.lab.quantize.round_job import METHODS, Recipe
    from forerun.model.loader import read_config

    if method not in METHODS:
        raise ConfigError(unknown("method", method, (*METHODS, "flatten")))
    if method == "rtn":
        _refuse({"gptq": gptq or None}, "needs a text to calibrate on, which rtn does without")
    config, _ = read_config(checkpoint)
    grid = grid_for(bits, group, input_widths(config))
    layout = layout_for(format, bits, grid.group)
    if method == "rtn":
        return Recipe("rtn", grid, layout)
    return Recipe("awq", grid, layout, gptq=gptq is not False)


def _refuse(given: Mapping[str, object], why: str) -> None:
    for key, value in given.items():
        if value is not None:
            flag = key.replace("_", "-")
            shown = f"--no-{flag}" if value is False else f"--{flag}"
            shown += "" if isinstance(value, bool) else f" {value}"
            raise ConfigError(f"{shown} {why}: leave it out")


def _flatten_recipe(bits: int | None, given: Mapping[str, Any]) -> FlattenRecipe:
    from forerun.lab.quantize.flatten_job import FlattenRecipe
    from forerun.weights.flat import SPLITS

    unused = {None: (), 4: ("bound",), 8: ("bound", "row_bits", "gptq")}.get(bits, ())
    _refuse({key: given.get(key) for key in unused}, f"has no meaning with --bits {bits}")
    recipe = FlattenRecipe(**given, bits=None if bits is None else 4 if bits == 4 else 8)
    if bits not in (None, 4, 8):
        raise ConfigError(f"--bits is {bits}, but flatten has 4 or 8: leave it out for its choice")
    if recipe.row_bits not in (4, 8):
        raise ConfigError(f"--row-bits is {recipe.row_bits}, but must be 4 or 8")
    if recipe.split not in SPLITS:
        raise ConfigError(unknown("split", recipe.split, SPLITS))
    if not 0 <= recipe.widen <= 4:
        raise ConfigError(f"--widen is {recipe.widen:g}, but must be 0 to 4")
    if not recipe.bound >= 0:
        raise ConfigError(f"--bound is {recipe.bound:g}, but must not be negative")
    return recipe
