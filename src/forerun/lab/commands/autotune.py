"""`forerun autotune`: measures what drafting costs and brings here, and prints what is best."""

from __future__ import annotations

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab.commands import _options as shared


@opt.command()
@opt.engine(without=(*opt.DRAFTER, "controller"), drafter="none", controller=False)
@click.option(
    "-d",
    "--drafters",
    "--drafter",
    help="NAME[:option=value,...],NAME,...; changed options stay. Default: all that need none.",
)
@shared.prompt_file("--prompts")
@click.option("--limit", default=9, help="Prompts to tune on, evenly over the categories.")
@click.option("-n", "--max-tokens", "--n-predict", default=64, help="New tokens a prompt, at most.")
@click.option("--repeats", default=10, help="Passes of each size; medians count.")
@opt.as_json
def command(
    config: EngineConfig,
    drafters: str | None,
    prompts: str,
    limit: int,
    max_tokens: int,
    repeats: int,
    as_json: bool,
) -> None:
    """Find the drafter and options that are fastest for a model on this machine: prints them as `-d` takes them."""
    from forerun.cli import console
    from forerun.drafting.spec import DrafterSpec
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import workload
    from forerun.lab.tune import report
    from forerun.lab.tune.search import Autotune, winner

    specs = report.specs_of(drafters)
    known = read(prompts)
    tuned_on = workload.choose(known, limit)
    checked_on = workload.choose([p for p in known if p not in tuned_on] or tuned_on, limit)
    llm = opt.load(config)
    if drafters is None and (auto := DrafterSpec.of("auto").for_target(llm.target())).parts:
        specs.append(auto)
    token_ids = [llm.encode(opt.conversation(prompt.turns[0])) for prompt in tuned_on]
    plain_ms, costs = report.time_passes(llm, repeats)
    search = Autotune(
        lambda drafter: llm.with_drafter(drafter).engine, token_ids, max_tokens, costs
    )
    best = [search.best_of(spec) for spec in specs]
    groups = workload.groups(checked_on, 1)
    chosen, measured = report.check(llm, winner(best), groups, max_tokens)
    if as_json:
        environment = console.environment(config.model, chosen, llm.model.num_threads)
        found = report.document(chosen, measured, costs, search.tried.values())
        console.print_json(found | environment)
    else:
        report.show(chosen, measured, plain_ms, best, len(search.tried))
