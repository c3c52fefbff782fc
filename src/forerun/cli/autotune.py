"""`forerun autotune`: measures what drafting costs and brings here, and writes down what is best."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt
from forerun.core.config import EngineConfig

if TYPE_CHECKING:
    from forerun.bench.autotune import Autotune, Report
    from forerun.bench.workload import Prompt, Unit
    from forerun.drafters._spec import DrafterSpec
    from forerun.engine.figures import DrafterFigures, PassTimes
    from forerun.engine.profile import Profile
    from forerun.llm import LLM


@opt.engine(without=(*opt.DRAFTER, "controller"), drafter="none", controller=False)
def command(
    config: EngineConfig,
    drafters: Annotated[
        str | None,
        typer.Option(
            "-d",
            "--drafters",
            "--drafter",
            help="NAME[:option=value,...],NAME,...; changed options stay. Default: all that need none.",
        ),
    ] = None,
    prompts: Annotated[
        str, typer.Option("--prompts", help="A .jsonl with turns, or a text file; default: ours.")
    ] = "builtin",
    limit: Annotated[
        int, typer.Option("--limit", help="Prompts to tune on, evenly over the categories.")
    ] = 9,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", "--n-predict", help="New tokens a prompt, at most.")
    ] = 64,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Passes of each size; medians count.")
    ] = 10,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Score again what an earlier run has scored.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Find the drafter and options that pay most for a model on this machine; `-d auto` uses them from then on.

    Ctrl-C loses nothing: the same command goes on where it was.
    """
    from forerun.bench import autotune, workload
    from forerun.cli import _console as console
    from forerun.eval.prompts import read

    specs = _specs(drafters)
    known = read(prompts)
    tuned_on = workload.choose(known, limit)
    checked_on = workload.choose([p for p in known if p not in tuned_on] or tuned_on, limit)
    llm = opt.load(config)
    try:
        with _bar() as progress:
            times = autotune.time_passes(llm.model, llm.max_len, repeats, progress)
            search = _search(llm, tuned_on, max_tokens, times, fresh, progress)
            best = search.run(specs)
            profile = _profile(llm, autotune.best_of(best, times), search)
            profile = _check(llm, profile, workload.units(checked_on, 1), max_tokens, progress)
    except KeyboardInterrupt:
        console.stderr().print("stopped; the same command goes on where it was")
        raise typer.Exit(130) from None
    path = profile.save()
    _report(profile, best, len(search.tried))
    if as_json:
        environment = console.environment(config.model, profile.drafter)
        console.print_json(profile.document() | environment | {"profile": str(path)})


def _specs(given: str | None) -> list[DrafterSpec]:
    """The drafters to try, each once; a misspelt one is told before anything is loaded."""
    from forerun.bench.autotune import PLAIN, candidates
    from forerun.core.errors import ConfigError
    from forerun.drafters._spec import DrafterSpec, split_list

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

    from forerun.cli import _console as console

    stderr = console.stderr()
    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("")

        def show(what: str, done: int, total: int) -> None:
            if not done:
                bar.reset(task)
            bar.update(task, description=what, completed=done, total=total)

        yield show


def _search(
    llm: LLM,
    prompts: Sequence[Prompt],
    max_tokens: int,
    times: PassTimes,
    fresh: bool,
    progress: Report,
) -> Autotune:
    """A search over these prompts that knows what earlier ones found out."""
    import forerun
    from forerun.bench.autotune import Autotune
    from forerun.bench.scores import ScoreLog
    from forerun.engine.profile import digest_of, folder

    token_ids = [llm.encode(opt.conversation(prompt.turns[0])) for prompt in prompts]
    key = {
        "forerun": forerun.__version__,
        "model": llm.subject.model,
        "setting": digest_of(llm.subject.setting),
        "prompts": digest_of([token_ids, max_tokens]),
    }
    return Autotune(
        lambda drafter: llm.with_drafter(drafter).engine,
        llm.target(),
        token_ids,
        max_tokens,
        times,
        ScoreLog(key, folder() / "scores.jsonl", fresh=fresh),
        progress,
    )


def _profile(llm: LLM, drafter: str, search: Autotune) -> Profile:
    from forerun.engine.profile import Profile

    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Profile(llm.subject, date, drafter, search.times, tuple(search.tried.values()), {})


def _check(
    llm: LLM, profile: Profile, units: Sequence[Unit], max_tokens: int, progress: Report
) -> Profile:
    """The profile with its choice measured beside plain decoding, as users run it; `none` if it is clearly slower."""
    from forerun.bench.autotune import PLAIN, measure
    from forerun.cli import _console as console

    if profile.drafter == PLAIN:
        return profile
    llm.profile, llm.config = profile, replace(llm.config, controller=True)
    measured = measure(
        profile.drafter,
        lambda drafter: llm.with_drafter(drafter).engine,
        llm.tokenizer,
        llm.encode,
        units,
        max_tokens,
        progress,
    )
    if measured["identical"] != measured["prompts"]:
        console.stderr().print(f"{profile.drafter} changed tokens: forerun verify -d shows where")
        raise typer.Exit(1)
    highest = measured["speedup_hi"]
    is_slower = isinstance(highest, float) and highest < 1
    return replace(profile, measured=measured, drafter=PLAIN if is_slower else profile.drafter)


def _report(profile: Profile, best: Sequence[DrafterFigures], num_tried: int) -> None:
    """A line for each drafter's best setting, and the choice."""
    from rich.table import Table

    from forerun.cli import _console as console

    table = Table(box=None, pad_edge=False)
    table.add_column("setting")
    for column in ("tau", "accepted", "draft ms", "pass cost", "expected", "measured"):
        table.add_column(column, justify="right")
    plain_ms, measured = profile.passes.plain_ms, profile.measured
    for figures in best:
        count = figures.passes or 1
        is_measured = measured.get("drafter") == figures.drafter
        table.add_row(
            figures.drafter,
            f"{figures.tau:.2f}",
            f"{figures.acceptance_rate:.0%}",
            f"{figures.draft_total / count * plain_ms:.2f}",
            f"{figures.pass_total(profile.passes) / count:.2f}",
            f"{figures.speedup(profile.passes):.2f}x",
            _interval(measured) if is_measured else "",
        )
    out = console.stdout()
    out.width = max(out.width, 72 + max(len(each.drafter) for each in best))
    out.print(table)
    out.print(
        f"best of {num_tried} settings: {profile.drafter}"
        + ("; nothing pays here" if profile.drafter == "none" else "")
        + f"\na plain pass takes {plain_ms:.2f} ms; profile: {profile.subject.path}"
    )


def _interval(measured: Mapping[str, object]) -> str:
    low, high = measured["speedup_lo"], measured["speedup_hi"]
    interval = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"{measured['speedup']:.2f}x{interval}"
