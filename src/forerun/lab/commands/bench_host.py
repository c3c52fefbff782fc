"""`forerun bench host`: what the engine's own work takes of a step, by phase."""

from __future__ import annotations

from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.lab import provenance
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish


@opt.command()
@opt.engine(without=("max_num_seqs", "memory_budget", "controller"), max_model_len=2048)
@click.option(
    "--together", default="1,4,16", help="Numbers of sequences that are answered together."
)
@click.option("-n", "--max-tokens", default=64, help="Tokens of an answer.")
@click.option("--task", default="builtin", help="builtin, or a .jsonl file of prompts.")
@shared.rounds
@shared.out
@opt.as_json
def command(
    config: EngineConfig,
    together: str,
    max_tokens: int,
    task: str,
    rounds: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Replay answers over passes that take no time, and tell the engine's microseconds a step by phase.

    Passes, the head and networks are left out. A step's rows are said to be free, so drafts are as large as they get.
    """
    from forerun.cli import console, tables
    from forerun.lab.bench import host, workload

    opt.check_least("rounds", rounds, 1)
    try:
        sizes = [int(size) for size in opt.names(together)]
    except ValueError as error:
        raise ConfigError(f"--together takes numbers, as in 1,4,16, got '{together}'") from error
    prompts = workload.choose(workload.read_task(task, None), max(sizes))
    llm = opt.load(config, max_num_seqs=max(sizes))
    steps = host.measure(llm, prompts, sizes, max_tokens, rounds)
    rows = [*tables.track(steps, "replaying", len(host.KINDS) * len(sizes))]
    document = {
        **console.environment(config.model, llm.drafter_spec.text(), llm.model.num_threads),
        "provenance": provenance.origin(config, llm, task=task, max_tokens=max_tokens),
        "rows": rows,
    }
    publish(document, lambda: host.show(document), as_json=as_json, out=out)
