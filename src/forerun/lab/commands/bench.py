"""`forerun bench`: drafters and other engines against our own plain decode, on the same prompts, in one run."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from forerun.cli import options as opt
from forerun.cli.command import Group
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.lab.commands import _options as shared

MAX_TOKENS = 128


@click.command("bench", cls=Group)
@opt.engine(is_parallel=True, without=(*opt.DRAFTER, "max_num_seqs"), drafter="none")
@opt.sampling(max_tokens=MAX_TOKENS, seed=0)
@click.option(
    "-d",
    "--drafters",
    "--drafter",
    default="none,auto",
    help="NAME[:option=value,...],NAME,...; none is always there.",
)
@click.option(
    "-p",
    "--n-prompt",
    metavar="N,...",
    help="Print llama-bench's table: prompts of N random tokens, and --max-tokens from none.",
)
@click.option(
    "--baseline",
    metavar="DRAFTER",
    help="Compare the others with this one too: the ratio of their speeds, with its interval.",
)
@click.option(
    "--task",
    default="builtin",
    help="builtin, spec_bench, a .jsonl file, or a name in --tasks-dir.",
)
@click.option("--tasks-dir", type=opt.PATH, help="Folder of NAME.jsonl prompt files.")
@shared.categories
@shared.limit
@click.option("--batch", "--batch-size", default=1, help="Prompts decoded together.")
@shared.rounds
@click.option("--peers", help="Other engines to measure beside ours: NAME,NAME,...")
@shared.peers_dir
@opt.form("json_schema")
@shared.out_resumed
@opt.as_json
@click.pass_context
def command(
    context: click.Context,
    config: EngineConfig,
    params: SamplingParams,
    drafters: str,
    n_prompt: str | None,
    baseline: str | None,
    task: str,
    tasks_dir: Path | None,
    categories: str | None,
    limit: int | None,
    batch: int,
    rounds: int,
    peers: str | None,
    peers_dir: Path,
    form: StructuredOutputsParams | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure drafters against plain decoding, paired and interleaved. Exits 1 if a token differs."""
    if context.invoked_subcommand is not None:
        return
    config = opt.for_this_rank(config)
    if n_prompt is not None:
        is_default = context.get_parameter_source("rounds") is ParameterSource.DEFAULT
        rounds = 5 if is_default else rounds  # as llama-bench
        _as_llama_bench(config, n_prompt, params.max_tokens or MAX_TOKENS, rounds, as_json)
        return
    from forerun.cli import console
    from forerun.lab.bench import report, run, workload
    from forerun.lab.bench.peers import base
    from forerun.lab.store import Store

    opt.check_least("rounds", rounds, 1)
    params.structured_outputs = form
    if form is not None and peers:
        raise ConfigError("--json-schema is for our own engine: leave out --peers")
    prompts = workload.only(workload.read_task(task, tasks_dir), opt.names(categories))
    groups = workload.groups(workload.choose(prompts, limit), batch)
    if (most := max(len(group.prompts) for group in groups)) < batch:
        note = f"--batch {batch}: at most {most} are decoded together, as no category has more prompts here"
        console.note(note, dim=True)
    llm = opt.load(config, max_num_seqs=batch)
    systems = run.drafters(llm, drafters, baseline, params)
    systems += base.peers(llm, opt.names(peers), peers_dir, [s.name for s in systems], params)
    origin = run.origin(config, llm, params, task=Path(task).stem, batch=batch)
    bench = run.Bench(groups, systems, llm.encode, Store(origin, out), num_rounds=rounds)
    is_stopped = False
    try:
        bench.run("measuring")
    except KeyboardInterrupt:
        if not bench.rounds:
            raise
        is_stopped = True
        console.note(f"stopped: {len(bench.rounds)} of {bench.num_steps} were measured", dim=True)
    chosen = None if baseline is None else run.resolved(llm, baseline)
    report.publish_run(bench.rounds, origin, chosen, as_json=as_json)
    if is_stopped:
        raise KeyboardInterrupt


def _as_llama_bench(
    config: EngineConfig, n_prompt: str, num_tokens: int, rounds: int, as_json: bool
) -> None:
    from forerun.cli import console
    from forerun.lab.bench import llama_bench

    prompts = llama_bench.lengths(n_prompt)
    llm = opt.load(config, max_num_seqs=1)
    rows = llama_bench.measure(llm, prompts, num_tokens, rounds)
    if as_json:
        environment = console.environment(config.model, "none", llm.model.num_threads)
        console.print_json({**environment, "rows": rows})
    else:
        click.echo(llama_bench.markdown(llm, rows))
