"""`forerun bench`: drafters and other engines against our own plain decode, on the same prompts, in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.lab import provenance
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish

if TYPE_CHECKING:
    from forerun.core.types import TaskPrompt

MAX_TOKENS = 128
ASKED = ("max_tokens", "temperature", "seed")
"""Fields of a request that a server is sent."""
OF_THIS_MACHINE = (
    *("drafters", "baseline", "peers", "peers_dir", "markdown", "json_schema"),
    *(field.name for field in fields(SamplingParams) if field.name not in ASKED),
)
"""Options that bench has no use for where a server answers."""

Drafters = Annotated[
    str,
    typer.Option(
        "-d",
        "--drafters",
        "--drafter",
        help="NAME[:option=value,...],NAME,...; none is always there.",
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="DRAFTER",
        help="Compare the others with this one too: the ratio of their speeds, with its interval.",
    ),
]
Task = Annotated[
    str, typer.Option(help="builtin, spec_bench, a .jsonl file, or a name in --tasks-dir.")
]
TasksDir = Annotated[Path | None, typer.Option(help="Folder of NAME.jsonl prompt files.")]
Peers = Annotated[
    str | None, typer.Option(help="Other engines to measure beside ours: NAME,NAME,...")
]
Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print the tables, all columns, as Markdown.")
]
Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Measure a server instead, --batch requests at once."),
]


@opt.engine(without=(*opt.DRAFTER, "max_num_seqs"), drafter="none")
@opt.sampling(max_tokens=MAX_TOKENS, seed=0)
def command(
    context: typer.Context,
    config: EngineConfig,
    params: SamplingParams,
    drafters: Drafters = "none,auto",
    baseline: Baseline = None,
    task: Task = "builtin",
    tasks_dir: TasksDir = None,
    categories: shared.Categories = None,
    limit: shared.Limit = None,
    batch: shared.Batch = 1,
    rounds: shared.Rounds = 1,
    peers: Peers = None,
    peers_dir: shared.PeersDir = Path(".peers"),
    json_schema: opt.JsonSchema = None,
    out: shared.OutResumed = None,
    markdown: Markdown = False,
    url: Url = None,
    api_key: shared.ApiKey = None,
    as_json: opt.Json = False,
) -> None:
    """Measure drafters against plain decoding, paired and interleaved. Exits 1 if a greedy token differs.

    With --url the prompts go to a server of OpenAI's API, as with bench serve.
    """
    if context.invoked_subcommand is not None:
        return
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import load, workload

    if url is not None:
        opt.refuse_given(context, *OF_THIS_MACHINE)
        model = opt.typed_model(context, config)
        file = task if tasks_dir is None else str(tasks_dir / f"{task}.jsonl")
        asked = load.draw(workload.only(read(file), opt.names(categories)), limit, params.seed or 0)
        _ask_server(
            url, api_key, model, asked, Path(file).stem, batch, params, rounds, out, as_json
        )
        return
    if api_key is not None:
        raise ConfigError("--api-key is for a server: give its --url")
    from forerun.cli import console
    from forerun.lab.bench import report, run, summary
    from forerun.lab.bench.peers import base
    from forerun.lab.store import Store

    opt.check_least("rounds", rounds, 1)
    params.structured_outputs = opt.form(json_schema)
    if json_schema is not None and peers:
        raise ConfigError("--json-schema is for our own engine: leave out --peers")
    prompts = workload.only(workload.read_task(task, tasks_dir), opt.names(categories))
    groups = workload.groups(workload.choose(prompts, limit), batch)
    llm = opt.load(config, max_num_seqs=batch)
    systems = run.drafters(llm, drafters, baseline, params)
    systems += base.peers(llm, opt.names(peers), peers_dir, [s.name for s in systems], params)
    origin = provenance.origin(
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
        sampling=run.changed(params),
    )
    bench = run.Bench(groups, systems, llm.encode, Store(origin, out), num_rounds=rounds)
    bench.run("measuring")
    chosen = None if baseline is None else run.resolved(llm, baseline)
    rows = summary.rows(bench.rounds, origin, chosen)
    different = summary.num_different(rows)

    def show() -> None:
        if markdown:
            console.stdout().print(report.markdown(origin, rows))
        else:
            report.show(origin, rows, chosen)

    publish(
        {"provenance": origin, "rows": rows},
        show,
        as_json=as_json,
        fails=different > 0,
        why=f"drafting changed the tokens of {different} prompts",
    )


def _ask_server(
    url: str, api_key: str | None, model: str | None, asked: Sequence[TaskPrompt], task: str,
    batch: int, params: SamplingParams, rounds: int, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Send the prompts to a server, as bench serve does."""
    from forerun.lab.bench import servers, serving
    from forerun.lab.bench.load import Load

    body = {"max_tokens": params.max_tokens or MAX_TOKENS, "temperature": params.temperature}
    loads = [Load(asked, body, batch, seed=params.seed or 0)]
    name, there = servers.remote(url, api_key, model, rounds)
    origin = {"task": task, "input_len": None, "server_args": "", "url": url}
    serving.run(name, there, loads, origin, rounds=rounds, out=out, within={}, as_json=as_json)
