"""`forerun quantize`: round a model's weights and write it as a Hugging Face folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt
from forerun.core.config import DEFAULT_MODEL
from forerun.core.errors import ConfigError, unknown
from forerun.core.textfile import read_text

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint
    from forerun.nn.quantize_job import QuantizeJob, Recipe

TEXT_TOKENS = 512
HELD_TEXTS = 8


def command(
    model: Annotated[
        str, typer.Option("-m", "--model", help="A GGUF file, a Hugging Face folder, or a name.")
    ] = DEFAULT_MODEL,
    method: Annotated[
        str, typer.Option("--method", help="awq (needs --calib), or rtn: round to nearest.")
    ] = "awq",
    bits: Annotated[int, typer.Option("--bits", help="Of a weight: 3, 4 or 8.")] = 4,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            help="Weights that share a scale: 32, 64, 128 or channel; default: 128, or what divides all widths.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", help="awq or compressed-tensors; default: awq where it holds the result."
        ),
    ] = None,
    calib: Annotated[
        Path | None,
        typer.Option("--calib", help="Text of the kind the model will read, UTF-8."),
    ] = None,
    calib_tokens: Annotated[
        int, typer.Option("--calib-tokens", help="Tokens of it to calibrate on.")
    ] = 16384,
    eval_text: Annotated[
        Path | None,
        typer.Option(
            "--eval", help="Text for the perplexities of the report; default: the rest of --calib."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The new folder.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Round a model's weights to few bits, and write it as a Hugging Face folder that other engines read too.

    Block by block, so that a small machine can round a large model. Ctrl-C loses nothing: the same command goes on. The
    report at the end has the perplexity before and after, and the error of each kind of matrix.
    """
    from forerun.cli import _console as console
    from forerun.core import sizes
    from forerun.formats.checkpoint import open_checkpoint
    from forerun.formats.hub import resolve
    from forerun.nn.quantize_job import QuantizeJob, peak_nbytes

    if out is None:
        raise ConfigError("name the new folder: -o DIR")
    opt.check_least("calib_tokens", calib_tokens, TEXT_TOKENS)
    checkpoint = open_checkpoint(resolve(model))
    recipe = _recipe(checkpoint, method, bits, group, format)
    calibration, held = _texts(checkpoint, calib, eval_text, calib_tokens)
    if method == "rtn":
        calibration = []
    origin = {
        "model": str(checkpoint.path.resolve()),
        "files": [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in _files(checkpoint)],
        "recipe": repr(recipe),
        "texts": [hash(tuple(map(tuple, texts))) for texts in (calibration, held)],
    }
    job = QuantizeJob(checkpoint, recipe, calibration, held, out, origin)
    num_tokens = sum(map(len, (*calibration, *held, *held)))
    stated = peak_nbytes(job.config, recipe.method, num_tokens)
    width = recipe.grid.group or "channel"
    if not as_json:
        console.report().print(
            f"{recipe.method}, {bits} bits, group {width}, format {recipe.layout}; takes about "
            f"{sizes.shown(stated)} of memory beside the program's own"
        )
    begin_s, before = time.perf_counter(), _peak_nbytes()
    _watch(job)
    with console.working("writing"):
        figures = job.finish()
    seconds, peak = time.perf_counter() - begin_s, _peak_nbytes() - before
    errors = _errors(job)
    if as_json:
        named = {"model": model, "method": method, "bits": bits, "group": width}
        named |= {"format": recipe.layout, "out": str(out), "seconds": round(seconds, 1)}
        named |= {"peak_mb": round(peak / 1e6, 1), "stated_mb": round(stated / 1e6, 1)}
        console.print_json(named | figures | {"errors": job.errors})
        return
    report = console.report()
    report.print(console.table(("matrix", "error", "worst", "in layer"), errors))
    if "ppl_before" in figures:
        report.print(
            f"perplexity {figures['ppl_before']:.4f} before, {figures['ppl_after']:.4f} after "
            f"({len(held)} texts of {len(held[0])} tokens)"
        )
    report.print(
        f"{out}: {sizes.shown(figures['nbytes'])}, {seconds:.0f} s, "
        f"{sizes.shown(max(0, peak))} of memory at most"
    )


def _files(checkpoint: Checkpoint) -> list[Path]:
    """The model's files, which must not change between the starts of a job."""
    path = checkpoint.path
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def _recipe(
    checkpoint: Checkpoint, method: str, bits: int, group: str | None, format: str | None
) -> Recipe:
    from forerun.formats.hf_layouts import layout_for
    from forerun.nn.awq_block import MATRICES
    from forerun.nn.config import weight_shapes
    from forerun.nn.loader import read_config
    from forerun.nn.quantize_job import METHODS, Recipe
    from forerun.quant.grid import grid_for

    if method not in METHODS:
        raise ConfigError(unknown("method", method, METHODS))
    config, _ = read_config(checkpoint)
    shapes = weight_shapes(config).items()
    widths = {shape[1] for name, shape in shapes if name.rpartition(".")[2] in MATRICES}
    grid = grid_for(bits, group, widths)
    layout = layout_for(format, bits, grid.group)
    return Recipe("awq" if method == "awq" else "rtn", grid, layout)


def _texts(
    checkpoint: Checkpoint, calib: Path | None, eval_text: Path | None, num_tokens: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Texts to calibrate on, and others to measure on, each of as many tokens."""
    from forerun.nn.loader import read_config

    config, _ = read_config(checkpoint)
    length = min(TEXT_TOKENS, config.max_position)
    tokenizer = checkpoint.tokenizer()

    def cut(file: Path | None) -> list[list[int]]:
        if file is None:
            return []
        ids = tokenizer.encode(read_text(file))
        start = [ids[0]] if ids and ids[0] == tokenizer.bos_id else []
        ids = ids[len(start) :]
        step = length - len(start)
        return [start + ids[i : i + step] for i in range(0, len(ids) - step + 1, step)]

    texts = cut(calib)
    count = min(num_tokens // length, max(1, len(texts) - 1)) if texts else 0
    if calib is not None and not texts:
        raise ConfigError(f"{calib} has fewer than {length} tokens: give a longer text")
    held = cut(eval_text) if eval_text is not None else texts[count:]
    return texts[:count], held[:HELD_TEXTS]


def _watch(job: QuantizeJob) -> None:
    """Run the job, with the time left on stderr in a terminal. Ctrl-C says how far it came."""
    from forerun.cli import _console as console

    done, total = 0, job.config.num_layers
    try:
        with console.counter("quantizing", total) as show:
            for done in job.run():
                show(done)
    except KeyboardInterrupt:
        console.stderr().print(
            f"{done} of {total} blocks are in {job.partial}; the same command goes on", style="dim"
        )
        raise
    except OSError as error:
        raise ConfigError(f"{job.partial} cannot be written: {error}") from error


def _errors(job: QuantizeJob) -> list[tuple[str, str, str, str]]:
    """Of each kind of matrix: the mean of its relative errors, the worst, and where that is."""
    kinds: dict[str, list[tuple[float, str]]] = {}
    for name, error in job.errors.items():
        layer, _, kind = name.partition(".")
        kinds.setdefault(kind, []).append((error, layer))
    lines = []
    for kind, found in kinds.items():
        worst, layer = max(found)
        mean = sum(error for error, _ in found) / len(found)
        lines.append((kind, f"{mean:.2%}", f"{worst:.2%}", layer))
    return lines


def _peak_nbytes() -> int:
    """The largest the process has been."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
