"""`forerun autotune`: measures what drafting costs and brings here, and writes down what is best."""

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
@click.option("--fresh", is_flag=True, help="Score again what an earlier run has scored.")
@opt.as_json
def command(
    config: EngineConfig,
    drafters: str | None,
    prompts: str,
    limit: int,
    max_tokens: int,
    repeats: int,
    fresh: bool,
    as_json: bool,
) -> None:
    """Find the drafter and options that are fastest for a model on this machine; `-d auto` uses them from then on.

    Ctrl-C loses nothing: the same command goes on where it was.
    """
    from forerun.cli import console
    from forerun.drafting.spec import DrafterSpec
    from forerun.engine.profile import Profile
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import workload
    from forerun.lab.provenance import now
    from forerun.lab.tune import report
    from forerun.lab.tune.search import Autotune, best_of

    specs = report.specs_of(drafters)
    known = read(prompts)
    tuned_on = workload.choose(known, limit)
    checked_on = workload.choose([p for p in known if p not in tuned_on] or tuned_on, limit)
    llm = opt.load(config)
    target = llm.target()
    if drafters is None and (auto := DrafterSpec.of("auto").for_target(target)).parts:
        specs.append(auto)
    token_ids = [llm.encode(opt.conversation(prompt.turns[0])) for prompt in tuned_on]
    try:
        times = report.time_passes(llm, repeats)
        with report.bar() as progress:
            search = Autotune(
                lambda drafter: llm.with_drafter(drafter).engine,
                target,
                token_ids,
                max_tokens,
                times,
                report.scores(llm, [token_ids, max_tokens], fresh),
                progress,
            )
            best = search.run(specs)
        chosen = best_of(best, times)
        profile = Profile(llm.subject, now(), chosen, times, tuple(search.tried.values()), {})
        profile = report.check(llm, profile, workload.groups(checked_on, 1), max_tokens)
    except KeyboardInterrupt:
        console.note("stopped; the same command goes on where it was")
        raise click.exceptions.Exit(130) from None
    path = profile.save()
    if as_json:
        environment = console.environment(config.model, profile.drafter, llm.model.num_threads)
        console.print_json(profile.document() | environment | {"profile": str(path)})
    else:
        report.show(profile, best, len(search.tried))
