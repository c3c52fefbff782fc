"""`forerun tune`: a table and a network of the model's own answers, or the best options of some drafters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab.commands import _options as shared
from forerun.lab.commands._training import command_of, count_of, leave_out, load
from forerun.lab.output import publish

if TYPE_CHECKING:
    from forerun.core.types import TaskPrompt
    from forerun.drafters.base.spec import DrafterSpec
    from forerun.llm import LLM

ALL = "all"


@opt.command()
@opt.engine(without=(*opt.DRAFTER, "controller"), drafter="none", controller=False, max_num_seqs=16)
@shared.prompt_file("--prompts")
@shared.answer_tokens("20k")
@click.option(
    "-d",
    "--drafters",
    "--drafter",
    help="Make nothing, but find the best options of NAME[:option=value,...],NAME,...; all: of all that need none.",
)
@click.option(
    "--network",
    is_flag=True,
    help="Train a network as well; without it one line says how long that takes.",
)
@click.option("--limit", default=9, help="Prompts to measure on, evenly over the categories.")
@click.option("-n", "--max-tokens", "--n-predict", default=64, help="New tokens a prompt, at most.")
@click.option("--repeats", default=10, help="With -d, passes of each size; medians count.")
@opt.as_json
@click.pass_context
def command(
    context: click.Context,
    config: EngineConfig,
    prompts: str,
    tokens: str,
    drafters: str | None,
    network: bool,
    limit: int,
    max_tokens: int,
    repeats: int,
    as_json: bool,
) -> None:
    """Make drafting faster for a model: a table of its answers to prompts and, with --network, a network.

    The default drafter finds both. They are measured on prompts that they did not learn from. Ctrl-C loses nothing: the
    same command goes on where it was. With -d it looks for the fastest drafter and options instead, and prints them as
    `-d` takes them.
    """
    from forerun.drafters.base.spec import DrafterSpec
    from forerun.hub.prompt_sets import read
    from forerun.lab.bench import workload
    from forerun.lab.tune import outcome, report, run

    if drafters is None:
        leave_out(context, ("repeats",), because="tune without -d")
    else:
        leave_out(context, ("tokens", "network"), because="-d")
    known, num_tokens = read(prompts), count_of("--tokens", tokens)
    chosen = workload.choose(known, limit)
    others = [prompt for prompt in known if prompt not in chosen] or chosen
    if drafters is None:
        goal = run.Goal(others, chosen, num_tokens, network, max_tokens)
        document = run.run(load(config), goal, command_of(context))
        publish(document, lambda: outcome.show(document), as_json=as_json)
        return
    specs = report.specs_of(None if drafters == ALL else drafters)
    llm = opt.load(config)
    if drafters == ALL and (auto := DrafterSpec.of("auto").for_target(llm.target())).parts:
        specs.append(auto)
    checked_on = workload.choose(others, limit)
    _search(llm, specs, chosen, checked_on, max_tokens, repeats, config.model, as_json=as_json)


def _search(
    llm: LLM,
    specs: list[DrafterSpec],
    tuned_on: list[TaskPrompt],
    checked_on: list[TaskPrompt],
    max_tokens: int,
    repeats: int,
    model: str,
    *,
    as_json: bool,
) -> None:
    """Score the settings of drafters, and print the best as `-d` takes it."""
    from forerun.cli import console
    from forerun.lab.bench import workload
    from forerun.lab.tune import report
    from forerun.lab.tune.search import Autotune, winner

    token_ids = [llm.encode(opt.conversation(prompt.turns[0])) for prompt in tuned_on]
    plain_ms, costs = report.time_passes(llm, repeats)
    search = Autotune(
        lambda drafter: llm.with_drafter(drafter).engine, token_ids, max_tokens, costs
    )
    best = [search.best_of(spec) for spec in specs]
    groups = workload.groups(checked_on, 1)
    chosen, measured = report.check(llm, winner(best), groups, max_tokens)
    if as_json:
        environment = console.environment(model, chosen, llm.model.num_threads)
        document = report.document(chosen, measured, costs, search.tried.values())
        console.print_json(document | environment)
    else:
        report.show(chosen, measured, plain_ms, best, len(search.tried))
