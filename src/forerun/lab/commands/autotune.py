"""`forerun autotune`: measures what drafting costs and brings here, and writes down what is best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig

if TYPE_CHECKING:
    from forerun.drafting.spec import DrafterSpec
    from forerun.engine.figures import DrafterFigures, PassTimes
    from forerun.engine.profile import Profile
    from forerun.lab.bench.workload import PromptGroup
    from forerun.lab.store import Store
    from forerun.lab.tune.search import Report
    from forerun.llm import LLM

ROUNDS = 2
"""How often the winner and plain decoding answer the prompts in turn."""
MEASURED = ("drafter", "prompts", "identical", "speedup", "speedup_lo", "speedup_hi", "tau")
"""Of the winner's results, those that its profile keeps."""


@opt.engine(without=(*opt.DRAFTER, "controller"), drafter="none", controller=False)
def command(
    config: EngineConfig,
    drafters: str | None = typer.Option(
        None,
        "-d",
        "--drafters",
        "--drafter",
        help="NAME[:option=value,...],NAME,...; changed options stay. Default: all that need none.",
    ),
    prompts: str = typer.Option(
        "builtin", help="A .jsonl with turns, or a text file; default: ours."
    ),
    limit: int = typer.Option(9, help="Prompts to tune on, evenly over the categories."),
    max_tokens: int = typer.Option(
        64, "-n", "--max-tokens", "--n-predict", help="New tokens a prompt, at most."
    ),
    repeats: int = typer.Option(10, help="Passes of each size; medians count."),
    fresh: bool = typer.Option(
        False, "--fresh", help="Score again what an earlier run has scored."
    ),
    as_json: opt.Json = False,
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
    from forerun.lab.tune.search import Autotune, best_of

    specs = _specs(drafters)
    known = read(prompts)
    tuned_on = workload.choose(known, limit)
    checked_on = workload.choose([p for p in known if p not in tuned_on] or tuned_on, limit)
    llm = opt.load(config)
    target = llm.target()
    if drafters is None and (auto := DrafterSpec.of("auto").for_target(target)).parts:
        specs.append(auto)
    token_ids = [llm.encode(opt.conversation(prompt.turns[0])) for prompt in tuned_on]
    try:
        times = _time_passes(llm, repeats)
        with _bar() as progress:
            search = Autotune(
                lambda drafter: llm.with_drafter(drafter).engine,
                target,
                token_ids,
                max_tokens,
                times,
                _store(llm, [token_ids, max_tokens], fresh),
                progress,
            )
            best = search.run(specs)
        chosen = best_of(best, times)
        profile = Profile(llm.subject, now(), chosen, times, tuple(search.tried.values()), {})
        profile = _check(llm, profile, workload.groups(checked_on, 1), max_tokens)
    except KeyboardInterrupt:
        console.stderr().print("stopped; the same command goes on where it was")
        raise typer.Exit(130) from None
    path = profile.save()
    if as_json:
        environment = console.environment(config.model, profile.drafter)
        console.print_json(profile.document() | environment | {"profile": str(path)})
    else:
        _report(profile, best, len(search.tried))


def _specs(given: str | None) -> list[DrafterSpec]:
    """The drafters to try, each once; a misspelt one is told before anything is loaded."""
    from forerun.core.errors import ConfigError
    from forerun.drafting.parse import split_list
    from forerun.drafting.spec import DrafterSpec
    from forerun.lab.tune.search import PLAIN, candidates

    names = candidates() if given is None else split_list(given)
    specs = {(spec := DrafterSpec.of(name)).text(): spec for name in names}
    specs.pop(PLAIN, None)
    if not specs:
        raise ConfigError(f"-d {given} leaves nothing to tune: name a drafter besides none")
    return list(specs.values())


@contextmanager
def _bar() -> Iterator[Report]:
    """A progress bar with the time left, on stderr, in a terminal only."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from forerun.cli import console

    stderr = console.stderr()
    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("")

        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


def _time_passes(llm: LLM, repeats: int) -> PassTimes:
    """What passes take here, of all shapes that autotune wants to know."""
    from forerun.cli import console
    from forerun.engine.figures import PassTime, PassTimes
    from forerun.lab.bench.kernels import Case, in_turns, timers
    from forerun.lab.tune.search import shapes

    wanted = shapes(min(llm.max_len, llm.model.config.max_position))
    cases = {Case(num, rows // num, context): (context, num, rows) for context, num, rows in wanted}
    rounds = in_turns(timers(llm.model, [*cases]), repeats)
    *_, seconds = console.track(rounds, "timing passes", repeats)
    return PassTimes(
        tuple(PassTime(*cases[case], round(median(s) * 1e3, 5)) for case, s in seconds.items())
    )


def _store(llm: LLM, asked: object, fresh: bool) -> Store:
    """The scores that earlier searches found for the same model, machine and prompts, unless `fresh`."""
    import forerun
    from forerun.engine.profile import digest_of, folder
    from forerun.lab.store import Store

    origin = {
        "forerun": forerun.__version__,
        "model": llm.subject.model,
        "setting": dict(llm.subject.setting),
        "prompts": digest_of(asked),
    }
    path = folder() / f"{llm.subject.name}-{digest_of(origin)}.scores.jsonl"
    if fresh:
        path.unlink(missing_ok=True)
    return Store(origin, path)


def _check(llm: LLM, profile: Profile, groups: Sequence[PromptGroup], max_tokens: int) -> Profile:
    """The profile with its choice measured beside plain decoding, as users run it; `none` if it is clearly slower."""
    from forerun.cli import console
    from forerun.core.params import SamplingParams
    from forerun.lab.bench.run import PLAIN, Bench, EngineSystem
    from forerun.lab.bench.summary import ALL, rows
    from forerun.lab.store import Store

    chosen = profile.drafter
    if chosen == PLAIN:
        return profile
    llm.profile, llm.config = profile, replace(llm.config, controller=True)
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    systems = [EngineSystem.of(llm, name, params) for name in (PLAIN, chosen)]
    bench = Bench(groups, systems, llm.encode, Store({"temperature": 0}), num_rounds=ROUNDS)
    bench.run(f"{chosen} beside plain decoding")
    found = rows(bench.rounds, bench.store.origin)
    row = next(row for row in found if (row["drafter"], row["category"]) == (chosen, ALL))
    if row["identical"] != row["prompts"]:
        console.stderr().print(f"{chosen} changed tokens: forerun verify -d shows where")
        raise typer.Exit(1)
    highest = row["speedup_hi"]
    is_slower = isinstance(highest, float) and highest < 1
    measured = {key: row[key] for key in MEASURED}
    return replace(profile, measured=measured, drafter=PLAIN if is_slower else chosen)


def _report(profile: Profile, best: Sequence[DrafterFigures], num_tried: int) -> None:
    """A line for each drafter's best setting, and the choice."""
    from forerun.cli import console
    from forerun.lab.bench.report import speedup

    plain_ms, measured, lines = profile.passes.plain_ms, profile.measured, []
    for figures in best:
        is_measured = measured.get("drafter") == figures.drafter
        lines.append(
            (
                figures.drafter,
                f"{figures.tau:.2f}",
                f"{figures.acceptance_rate:.0%}",
                f"{figures.speedup(profile.passes):.2f}x",
                speedup(measured) if is_measured else "",
            )
        )
    columns = ("setting", "tau", "accepted", "expected", "measured")
    out = console.report()
    out.print(console.table(columns, lines))
    out.print(
        f"{console.TAU}; expected, measured: speed-up over plain decoding, the latter with its 95 % interval"
    )
    out.print(
        f"best of {num_tried} settings: {profile.drafter}"
        + ("; drafting is not faster here" if profile.drafter == "none" else "")
        + f"\na plain pass takes {plain_ms:.2f} ms; profile: {profile.subject.path}"
    )
