"""What forerun quantize reads and prints: texts, what is to come, errors, figures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from forerun.cli import console, tables
from forerun.core import sizes
from forerun.core.errors import ConfigError
from forerun.lab.output import Column, publish, show_table, writing
from forerun.lab.quantize.job import QuantizeJob
from forerun.model.loader import read_config
from forerun.system.device import peak_nbytes, resident_nbytes, return_at_once, return_freed
from forerun.system.files import read_text
from forerun.weights.checkpoint import Checkpoint

TEXT_TOKENS = 512
HELD_TEXTS = 8


def state(job: QuantizeJob, what: Mapping[str, object], *, is_shown: bool) -> int:
    """Say what is to come; the bytes that the process will take at most."""
    return_at_once()
    return_freed()
    before = resident_nbytes()
    stated = before + job.peak_nbytes()
    if is_shown:
        shown = ", ".join(f"{key} {value}" for key, value in what.items())
        texts = (sum(map(len, texts)) for texts in (job.calibration, job.held_out))
        tables.report().print(
            "{}; {} tokens to calibrate on, {} others to measure on; ".format(shown, *texts)
            + f"takes up to about {sizes.format_size(stated)} of memory, "
            + f"{sizes.format_size(before)} of it the program's own"
        )
    return stated


def _show(job: QuantizeJob, figures: Mapping[str, float]) -> None:
    """Print the errors of each kind of matrix, and the figures."""
    kinds: dict[str, list[tuple[float, str]]] = {}
    for name, error in job.errors.items():
        layer, _, kind = name.partition(".")
        kinds.setdefault(kind, []).append((error, layer))
    columns: dict[str, Column] = {
        "matrix": lambda item: item[0],
        "error": lambda item: f"{fmean(error for error, _ in item[1]):.2%}",
        "worst": lambda item: f"{max(item[1])[0]:.2%}",
        "in layer": lambda item: max(item[1])[1],
    }
    show_table(kinds.items(), columns)
    report = tables.report()
    if "share_4bit" in figures:
        report.print(
            f"{figures['share_4bit']:.1%} of multiplications in 4 bits, {figures['share_8bit']:.1%} in 8, the others "
            f"in 8 with a scale for each group of inputs; rows {figures['widening']:.3f} times as wide, "
            f"fp16 weights {figures['fp16_over_codes']:.2f} times the codes, "
            f"all of them {figures['fp16_over_folder']:.2f} times the folder"
        )
    if figures.get("rare_experts"):
        layers = ", ".join(f"{count} of layer {layer}" for layer, count in job.rare.items())
        report.print(
            f"{figures['rare_experts']} experts had too few rows of the calibration text and are rounded to nearest: "
            f"{layers}; a longer text (--calib-tokens) reaches more"
        )
    if "ppl_before" in figures:
        report.print(
            f"perplexity {figures['ppl_before']:.4f} before, {figures['ppl_after']:.4f} after "
            f"({len(job.held_out)} texts of {len(job.held_out[0])} tokens); mean KL divergence from the source's "
            f"predictions {figures['divergence']:.4f} nats a token"
        )


def texts_of(
    checkpoint: Checkpoint, calib: Path | None, eval_text: Path | None, num_tokens: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Read texts to calibrate on, and others to measure on, each of as many tokens."""
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
    held_out = cut(eval_text) if eval_text is not None else texts[count:]
    if eval_text is not None and not held_out:
        raise ConfigError(f"{eval_text} has fewer than {length} tokens: give a longer text")
    return texts[:count], held_out[:HELD_TEXTS]


def run(job: QuantizeJob, named: Mapping[str, object], stated: int, *, as_json: bool) -> None:
    """Run the job with the time left on stderr, and publish its figures after what is `named`."""
    begin_s = time.perf_counter()
    with writing(job.partial):
        figures = _run(job)
    seconds, peak = time.perf_counter() - begin_s, peak_nbytes()
    measured = {"seconds": round(seconds, 1), "peak_mb": round(peak / 1e6, 1)}
    measured |= {"stated_mb": round(stated / 1e6, 1), **figures}
    moved = {"divergences": job.divergences} if named["method"] == "flatten" else {}

    def show() -> None:
        _show(job, figures)
        tables.report().print(
            f"{job.folder}: {sizes.format_size(round(figures['nbytes']))}, {seconds:.0f} s, "
            f"{sizes.format_size(peak)} of memory at most"
        )

    publish({**named, **measured, "errors": job.errors, **moved}, show, as_json=as_json)


def _run(job: QuantizeJob) -> dict[str, float]:
    """Run the job with a progress bar and return its figures. After Ctrl-C a note tells how far it came."""
    done, total = 0, job.num_steps
    try:
        with tables.counter("quantizing", total) as show:
            job.on_matrix = lambda share: show(done + share)
            for done in job.run():
                show(done)
        with console.working("writing"):
            return job.finish()
    except KeyboardInterrupt:
        console.note(
            f"{done} of {total} steps are in {job.partial}; the same command goes on", dim=True
        )
        raise
