"""`forerun bench`: drafters and other engines against our own plain decode, on the same prompts, in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams

if TYPE_CHECKING:
    from forerun.core.types import TaskPrompt
    from forerun.lab.bench.measurement import Provenance
    from forerun.lab.bench.run import Bench, System
    from forerun.lab.bench.summary import Row
    from forerun.llm import LLM

MAX_TOKENS = 128
ASKED = ("max_tokens", "temperature", "seed")
"""Fields of a request that stand in the provenance by themselves, and that a server is sent."""
SAMPLING = tuple(field.name for field in fields(SamplingParams) if field.name not in ASKED)
OF_THIS_MACHINE = (
    *("drafters", "baseline", "peers", "peers_dir", "markdown", "json_schema"),
    *SAMPLING,
)
"""Options that bench has no use for where a server answers."""

LEGEND = (
    "speed-up: decoded tokens a second over plain decoding's, [95 % interval over prompts]; "
    "tau: tokens per pass of the model; same: prompts with plain decoding's tokens. "
    "--markdown has all columns."
)


@opt.engine(without=(*opt.DRAFTER, "max_num_seqs"), drafter="none")
@opt.sampling(max_tokens=MAX_TOKENS, seed=0)
def command(
    context: typer.Context,
    config: EngineConfig,
    params: SamplingParams,
    drafters: str = typer.Option(
        "none,auto",
        "-d",
        "--drafters",
        "--drafter",
        help="NAME[:option=value,...],NAME,...; none is always there.",
    ),
    baseline: str | None = typer.Option(
        None,
        metavar="DRAFTER",
        help="Compare the others with this one too: the ratio of their speeds, with its interval.",
    ),
    task: str = typer.Option(
        "builtin", help="builtin, spec_bench, a .jsonl file, or a name in --tasks-dir."
    ),
    tasks_dir: Path | None = typer.Option(None, help="Folder of NAME.jsonl prompt files."),
    categories: str | None = typer.Option(
        None, help="Only prompts of these, e.g. code,maths,chat."
    ),
    limit: int | None = typer.Option(None, help="So many prompts, evenly over the categories."),
    batch: int = typer.Option(1, "--batch", "--batch-size", help="Prompts decoded together."),
    rounds: int = typer.Option(1, help="How often every prompt is measured."),
    peers: str | None = typer.Option(
        None, help="Other engines to measure beside ours: NAME,NAME,..."
    ),
    peers_dir: Path = typer.Option(Path(".peers"), help="Where make peers put their environments."),
    json_schema: opt.JsonSchema = None,
    out: Path | None = typer.Option(
        None, help="JSONL of measurements; what it holds already is not repeated."
    ),
    markdown: bool = typer.Option(
        False, "--markdown", help="Print the tables, all columns, as Markdown."
    ),
    url: str | None = typer.Option(
        None, metavar="URL", help="Measure a server instead, --batch requests at once."
    ),
    api_key: str | None = typer.Option(None, metavar="KEY", help="The key that it asks for."),
    as_json: opt.Json = False,
) -> None:
    """Measure drafters against plain decoding, paired and interleaved. Exits 1 if a greedy token differs.

    With --url the prompts go to a server of OpenAI's API, as with bench serve.
    """
    if context.invoked_subcommand is not None:
        return
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import load, workload
    from forerun.lab.commands import _systems, bench_serve

    if url is not None:
        opt.refuse_given(context, *OF_THIS_MACHINE)
        model = opt.typed_model(context, config)
        file = task if tasks_dir is None else str(tasks_dir / f"{task}.jsonl")
        asked = load.draw(workload.only(read(file), opt.names(categories)), limit, params.seed or 0)
        body: dict[str, object] = {"max_tokens": params.max_tokens or MAX_TOKENS}
        body["temperature"] = params.temperature
        loads = [load.Load(asked, body, batch, seed=params.seed or 0)]
        name, there = _systems.there(url, api_key, model, rounds)
        asked_of = {"task": Path(file).stem, "input_len": None, "server_args": "", "url": url}
        bench_serve.run(name, there, loads, asked_of, rounds, out, {}, as_json)
        return
    if api_key is not None:
        raise ConfigError("--api-key is for a server: give its --url")
    from forerun.cli import console
    from forerun.lab.bench.run import Bench
    from forerun.lab.store import Store

    opt.check_least("rounds", rounds, 1)
    params.structured_outputs = opt.form(json_schema)
    if json_schema is not None and peers:
        raise ConfigError("--json-schema is for our own engine: leave out --peers")
    prompts = workload.only(_prompts(task, tasks_dir), opt.names(categories))
    groups = workload.groups(workload.choose(prompts, limit), batch)
    llm = opt.load(config, max_num_seqs=batch)
    ours = _drafters(llm, drafters, baseline, params)
    systems = ours + _peers(llm, peers, peers_dir, [system.name for system in ours], params)
    origin = opt.origin(
        config,
        llm,
        task=Path(task).stem,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        batch=batch,
        seed=params.seed,
        max_model_len=llm.max_len,
        controller=config.controller,
        draft_budget=config.draft_budget,
        profile=None if llm.profile is None else llm.profile.date,
        form=None if params.structured_outputs is None else params.structured_outputs.source,
        sampling=_changed(params),
    )
    bench = Bench(groups, systems, llm.encode, Store(origin, out), num_rounds=rounds)
    try:
        for _ in console.track(bench.steps(), "measuring", bench.num_steps):
            pass
    finally:
        for system in systems:
            system.close()
    chosen = None if baseline is None else _resolved(llm, baseline)
    _report(bench, as_json, markdown, chosen)


def _changed(params: SamplingParams) -> dict[str, object] | None:
    """What is asked for besides tokens, temperature and seed."""
    neutral = SamplingParams()
    names = [name for name in SAMPLING if name != "structured_outputs"]
    found = {name: getattr(params, name) for name in names}
    return {k: v for k, v in found.items() if v != getattr(neutral, k)} or None


def _prompts(task: str, tasks_dir: Path | None) -> list[TaskPrompt]:
    """Of a file, of `builtin`, of a published set, or of the task of that name in the folder."""
    from forerun.core.errors import unknown
    from forerun.hub.prompt_sets import BUILTIN, read
    from forerun.hub.published import PUBLISHED

    if task == BUILTIN or Path(task).suffix or (tasks_dir is None and task in PUBLISHED):
        return read(task)
    if tasks_dir is None:
        raise ConfigError(f"task '{task}' is no file: say with --tasks-dir where {task}.jsonl lies")
    known = [path.stem for path in tasks_dir.glob("*.jsonl")]
    if task not in known:
        raise ConfigError(unknown("task", task, [BUILTIN, *known]))
    return read(tasks_dir / f"{task}.jsonl")


def _report(bench: Bench, as_json: bool, as_markdown: bool, baseline: str | None) -> None:
    """The results in one of three forms, and the verdict."""
    from forerun.cli import console
    from forerun.lab.bench import report, summary

    origin = bench.store.origin
    rows = summary.rows(bench.rounds, origin, baseline)
    if as_json:
        console.print_json({"provenance": origin, "rows": rows})
    elif as_markdown:
        console.stdout().print(report.markdown(origin, rows))
    else:
        _print(origin, rows, baseline)
    different = summary.num_different(rows)
    if different:
        what = f"drafting changed the tokens of {different} prompts"
        console.stderr().print(what, style="bold red")
        raise typer.Exit(1)


def _print(origin: Provenance, rows: Sequence[Row], baseline: str | None) -> None:
    """What people look at first; --markdown and --json have the rest."""
    from forerun.cli import console
    from forerun.lab.bench.report import NOTHING, label, number, over_baseline, percent, speedup
    from forerun.lab.bench.summary import ALL

    out = console.report()
    known = ("model", "{}"), ("task", "{}"), ("max_tokens", "{} tokens"), ("threads", "{} threads")
    out.print(" · ".join(text.format(origin.get(key)) for key, text in known) + "\n")
    totals, parts = [], []
    for row in rows:
        if "error" in row:
            continue
        figures = (number(row["tok_s"], 1), speedup(row), number(row["tau"], 2))
        accepted = percent(row["acceptance_rate"])
        if row["category"] == ALL:
            same = NOTHING if row["identical"] is None else f"{row['identical']}/{row['prompts']}"
            beside = () if baseline is None else (over_baseline(row),)
            totals.append((label(row), *figures, *beside, same))
        else:
            times = f"{number(row['speedup'], 2)}x"
            parts.append((row["category"], label(row), figures[0], times, figures[2], accepted))
    columns = ("drafter", "tok/s", "speed-up", "tau")
    beside = () if baseline is None else (f"over {baseline}",)
    out.print(console.table((*columns, *beside, "same"), totals))
    for row in rows:
        if "error" in row:
            out.print(f"{label(row)} could not run: {row['error']}")
    if parts:
        categories = sorted({part[0] for part in parts})
        parts.sort(key=lambda part: categories.index(part[0]))
        out.print()
        out.print(console.table(("category", *columns, "accepted"), parts, num_left=2))
    out.print(f"\n{LEGEND}")


def _drafters(llm: LLM, given: str, baseline: str | None, params: SamplingParams) -> list[System]:
    """Plain decoding, then the drafters in the order given, and the one they are compared with."""
    from forerun.drafting.parse import split_list
    from forerun.drafting.spec import DrafterSpec
    from forerun.lab.bench.run import PLAIN, EngineSystem

    asked = [*split_list(given), *([baseline] if baseline else [])]
    for spec in asked:
        DrafterSpec.of(spec)  # a misspelt name is told before anything is measured
    specs = dict.fromkeys([PLAIN, *(_resolved(llm, spec) for spec in asked)])

    def system(spec: str) -> EngineSystem:
        return EngineSystem(spec, lambda: llm.with_drafter(spec).engine, llm.tokenizer, params)

    return [system(spec) for spec in specs]


def _resolved(llm: LLM, drafter: str) -> str:
    """The drafter by the name of its measurements; `auto` is what it stands for with this model."""
    from forerun.drafting.spec import DrafterSpec

    spec = DrafterSpec.of(drafter)
    return llm.with_drafter(drafter).drafter_spec.text() if spec.is_auto else drafter


def _peers(
    llm: LLM, given: str | None, folder: Path, specs: Sequence[str], params: SamplingParams
) -> list[System]:
    """Every peer that was asked for, in each of its ways of decoding; they draft with the files that we draft with."""
    import torch

    from forerun.cli import console
    from forerun.hub.names import resolve
    from forerun.lab.bench.peers import base

    drafts = _second(specs, "draft_model")
    networks = [name for name in _second(specs, "eagle3") if name.endswith(".gguf")]
    names = opt.names(given)
    if names and (not params.is_greedy or _changed(params) or llm.config.max_num_seqs > 1):
        raise ConfigError(
            "peers decode greedily and one prompt at a time: temperature 0, batch 1 and no other option of sampling"
        )
    setup = base.Setup(
        llm.path,
        torch.get_num_threads(),
        llm.max_len,
        folder,
        draft=resolve(drafts[0]) if drafts else None,
        eagle3=Path(networks[0]).expanduser() if networks else None,
        tell=partial(console.stderr().print, soft_wrap=True),
    )
    return [system for name in names for system in base.systems(name, setup)]


def _second(specs: Sequence[str], drafter: str) -> list[str]:
    """The models of the drafters of that name, those of the target itself left out."""
    from forerun.drafting.base import SELF
    from forerun.drafting.spec import DrafterSpec

    chosen = [DrafterSpec.of(spec) for spec in specs]
    parts = [part for spec in chosen for part in (spec.parts or (spec,))]
    models = [str(part.options["model"]) for part in parts if part.name == drafter]
    return [model for model in models if model != SELF]
