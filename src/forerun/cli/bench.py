"""`forerun bench`: drafters and other engines against our own plain decode, on the same prompts, in one run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams

if TYPE_CHECKING:
    from forerun.bench.record import Record
    from forerun.bench.run import Bench, Contender
    from forerun.engine.engine import Engine
    from forerun.eval.prompts import TaskPrompt
    from forerun.llm import LLM


@opt.engine(without=(*opt.DRAFTER, "max_num_seqs"), drafter="none")
@opt.sampling("max_tokens", "temperature", "seed", max_tokens=128, seed=0)
def command(
    context: typer.Context,
    config: EngineConfig,
    params: SamplingParams,
    drafters: Annotated[
        str,
        typer.Option(
            "-d",
            "--drafters",
            "--drafter",
            help="NAME[:option=value,...],NAME,...; none is always there.",
        ),
    ] = "none,prompt_lookup,suffix",
    task: Annotated[
        str, typer.Option("--task", help="builtin, a .jsonl file, or a name in --tasks-dir.")
    ] = "builtin",
    tasks_dir: Annotated[
        Path | None, typer.Option("--tasks-dir", help="Folder of NAME.jsonl prompt files.")
    ] = None,
    categories: Annotated[
        str | None,
        typer.Option("--categories", help="Only prompts of these, e.g. code,maths,chat."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="So many prompts, evenly over the categories.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Prompts decoded together.")] = 1,
    rounds: Annotated[
        int, typer.Option("--rounds", help="How often every prompt is measured.")
    ] = 1,
    peers: Annotated[
        str | None,
        typer.Option("--peers", help="Other engines to measure beside ours: NAME,NAME,..."),
    ] = None,
    peers_dir: Annotated[
        Path, typer.Option("--peers-dir", help="Where make peers put their environments.")
    ] = Path(".peers"),
    out: Annotated[
        Path | None,
        typer.Option("--out", help="JSONL of measurements; what it holds already is not repeated."),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Measure drafters against plain decoding, paired and interleaved. Exits 1 if a greedy token differs."""
    if context.invoked_subcommand is not None:
        return
    from forerun.bench import workload
    from forerun.bench.record import Record, provenance
    from forerun.bench.run import Bench
    from forerun.formats.hub import resolve

    prompts = workload.only(_prompts(task, tasks_dir), _names(categories))
    units = workload.units(workload.choose(prompts, limit), batch)
    llm = opt.load(config, max_num_seqs=batch)
    path = resolve(config.model)
    ours = _drafters(llm, drafters, params)
    contenders = ours + _peers(llm, path, peers, peers_dir, [c.name for c in ours], params)
    origin = provenance(
        path.stem,
        opt.quant_name(config, path),
        task=Path(task).stem,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        batch=batch,
        seed=params.seed,
        backend=type(llm.model).__name__,
        head_bits=config.head_bits,
        max_model_len=llm.max_len,
        controller=config.controller,
        draft_budget=config.draft_budget,
        profile=None if llm.profile is None else llm.profile.date,
    )
    bench = Bench(units, contenders, llm.encode, Record(origin, out), num_rounds=rounds)
    _run(bench)
    _report(bench.record, as_json)


def _prompts(task: str, tasks_dir: Path | None) -> list[TaskPrompt]:
    """Of a file, of `builtin`, or of the task of that name in the folder."""
    from forerun.core.errors import ConfigError, unknown
    from forerun.eval.prompts import BUILTIN, read

    if task == BUILTIN or Path(task).suffix:
        return read(task)
    if tasks_dir is None:
        raise ConfigError(f"task '{task}' is no file: say with --tasks-dir where {task}.jsonl lies")
    known = [path.stem for path in tasks_dir.glob("*.jsonl")]
    if task not in known:
        raise ConfigError(unknown("task", task, [BUILTIN, *known]))
    return read(tasks_dir / f"{task}.jsonl")


def _names(given: str | None) -> list[str]:
    """The parts of a list with commas."""
    return list(filter(None, map(str.strip, (given or "").split(","))))


def _report(record: Record, as_json: bool) -> None:
    """Tables, the JSON document, and the verdict."""
    from forerun.bench import report, summary
    from forerun.cli import _console as console

    rows = summary.rows(record.measurements, record.origin)
    console.stdout().print(report.markdown(record.origin, rows), markup=False)
    if as_json:
        console.print_json({"provenance": record.origin, "rows": rows})
    different = summary.num_different(rows)
    if different:
        console.stderr().print(f"[bold red]drafting changed the tokens of {different} prompts[/]")
        raise typer.Exit(1)


def _drafters(llm: LLM, given: str, params: SamplingParams) -> list[Contender]:
    """Plain decoding, then the drafters in the order given."""
    from forerun.bench.run import PLAIN, EngineContender
    from forerun.drafters._spec import DrafterSpec, split_list

    specs = dict.fromkeys([PLAIN, *split_list(given)])
    for spec in specs:
        DrafterSpec.of(spec)  # a misspelt name is told before anything is measured
    return [
        EngineContender(spec, partial(_engine, llm, spec), llm.tokenizer, params) for spec in specs
    ]


def _engine(llm: LLM, spec: str) -> Engine:
    return llm.with_drafter(spec).engine


def _peers(
    llm: LLM,
    model: Path,
    given: str | None,
    folder: Path,
    specs: Sequence[str],
    params: SamplingParams,
) -> list[Contender]:
    """Every peer that was asked for, in each of its ways of decoding; they draft with the draft model we draft with."""
    import torch

    from forerun.bench.peers import base
    from forerun.cli import _console as console
    from forerun.core.errors import ConfigError

    names = _names(given)
    if names and (not params.is_greedy or llm.config.max_num_seqs > 1):
        raise ConfigError("peers decode greedily and one prompt at a time: temperature 0, batch 1")
    setup = base.Setup(
        model,
        torch.get_num_threads(),
        llm.max_len,
        folder,
        draft=_draft(specs),
        tell=partial(console.stderr().print, soft_wrap=True),
    )
    return [contender for name in names for contender in base.contenders(name, setup)]


def _draft(specs: Sequence[str]) -> Path | None:
    """The file of the first draft model among these drafters."""
    from forerun.drafters._spec import DrafterSpec
    from forerun.drafters.base import SELF
    from forerun.formats.hub import resolve

    chosen = [DrafterSpec.of(spec) for spec in specs]
    parts = [part for spec in chosen for part in (spec.parts or (spec,))]
    models = [str(part.options["model"]) for part in parts if part.name == "draft_model"]
    files = [resolve(model) for model in models if model != SELF]
    return files[0] if files else None


def _run(bench: Bench) -> None:
    """Measure everything, with the time left on stderr in a terminal."""
    from rich.progress import track

    from forerun.cli import _console as console

    stderr = console.stderr()
    try:
        for _ in track(
            bench.steps(),
            "measuring",
            total=bench.num_steps,
            console=stderr,
            disable=not stderr.is_terminal,
        ):
            pass
    finally:
        for contender in bench.contenders:
            contender.close()
