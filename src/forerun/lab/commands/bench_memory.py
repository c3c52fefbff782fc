"""`forerun bench memory`: what is kept of the speed when generation memory is cut."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.lab import provenance
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish

SPECIFICATION = "suffix,recycling,recycling:num_draft=15"


@opt.command()
@opt.engine(
    without=(*opt.DRAFTER, "max_num_seqs", "memory_budget"), drafter="none", max_model_len=2048
)
@opt.sampling("max_tokens", "seed", max_tokens=256, seed=0)
@click.option("-d", "--drafters", default=SPECIFICATION, help="NAME[:option=value,...],NAME,...")
@click.option(
    "--cuts",
    default="0,25,50,65,80",
    help="Percent to take away of the generation memory that is used.",
)
@click.option(
    "--task", type=opt.PATH, help="A .jsonl file of conversations; default: builtin prompts."
)
@shared.limit
@click.option("--together", default=4, help="Conversations that are decoded together.")
@shared.rounds
@shared.out
@opt.as_json
def command(
    config: EngineConfig,
    params: SamplingParams,
    drafters: str,
    cuts: str,
    task: Path | None,
    limit: int | None,
    together: int,
    rounds: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure drafters with all their generation memory and with less than they use of it, on the same conversations.

    Generation memory is what is not weights, tokenizer or program. A first round says what is used. Exits 1 if a greedy
    token differs.
    """
    from forerun.drafters.base.parse import split_list
    from forerun.drafters.base.spec import DrafterSpec
    from forerun.hub.prompt_sets import BUILTIN, read
    from forerun.lab.bench import memory, run, workload

    for name, number in (("together", together), ("rounds", rounds)):
        opt.check_least(name, number, 1)
    percents = memory.percents(cuts)
    prompts = workload.choose(read(str(task) if task else BUILTIN), limit)
    llm = opt.load(config, max_num_seqs=together)
    names = [DrafterSpec.of(run.resolved(llm, name)).text() for name in split_list(drafters)]
    origin = provenance.origin(
        config, llm, task=task.stem if task else BUILTIN, max_tokens=params.max_tokens,
        temperature=0.0, together=together, seed=params.seed,
        max_model_len=llm.max_len,
    )  # fmt: skip
    groups = memory.groups(prompts, together)
    measure = partial(memory.measure, llm, groups=groups, params=params, origin=origin)
    wholes = [memory.whole(llm, name) for name in names]
    first = measure(wholes, rounds=1, what=f"what they use, {together}")
    points = [
        point
        for whole in wholes
        for point in memory.points(llm, whole, memory.used_nbytes(whole, first), percents)
    ]
    measured = measure(points, rounds=rounds, what=str(together))
    rows = memory.rows(points, measured, origin)
    publish(
        {"provenance": origin, "rows": rows},
        lambda: memory.show(rows),
        as_json=as_json,
        out=out,
        fails=any(row.get("identical") not in (None, row.get("prompts")) for row in rows),
        why="a budget or a drafter changed tokens",
    )
