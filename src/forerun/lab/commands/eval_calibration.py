"""`forerun eval calibration`: stated probability against share accepted, of every drafter."""

from __future__ import annotations

from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.lab import provenance
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish


@opt.command()
@opt.engine(without=(*opt.DRAFTER, "max_num_seqs"), drafter="none", controller=False)
@opt.sampling(max_tokens=96, seed=0)
@click.option("-d", "--drafters", default="auto", help="NAME[:option=value,...],NAME,...")
@shared.prompt_file("--task")
@shared.limit
@shared.out
@opt.as_json
def command(
    config: EngineConfig,
    params: SamplingParams,
    drafters: str,
    task: str,
    limit: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare the probabilities that drafters state of their nodes with the shares that are accepted.

    By drafter and depth, over nodes whose parent was right. "gap" is the mean distance of both in bins of a tenth.
    """
    from forerun.cli import tables
    from forerun.drafting.parse import split_list
    from forerun.drafting.spec import DrafterSpec
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import workload
    from forerun.lab.eval import calibration

    names = split_list(drafters)
    for name in names:
        DrafterSpec.of(name)  # a misspelt one is refused before anything is loaded
    prompts = workload.choose(read(task), limit)
    llm = opt.load(config, max_num_seqs=1)
    steps = calibration.measure(llm, names, prompts, params)
    tracked = tables.track(steps, "measuring", len(names))
    rows = [row for step in tracked for row in calibration.table(*step)]
    origin = provenance.origin(
        config, llm, task=task, prompts=len(prompts), max_tokens=params.max_tokens,
        temperature=params.temperature, top_p=params.top_p, top_k=params.top_k, seed=params.seed,
    )  # fmt: skip
    publish(
        {"provenance": origin, "rows": rows},
        lambda: calibration.show(rows),
        as_json=as_json,
        out=out,
    )
