"""`forerun tune` without -d: answers, a table, a network if it is asked for; what is better is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forerun._native import CostCurve
from forerun.cli import console
from forerun.core.errors import ConfigError, ForerunError
from forerun.core.types import TaskPrompt
from forerun.lab.bench import summary, workload
from forerun.lab.bench.workload import PromptGroup
from forerun.lab.tune import learn, network, outcome, report
from forerun.llm import LLM


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked for."""

    prompts: Sequence[TaskPrompt]
    """To learn from."""
    measured: Sequence[TaskPrompt]
    """To measure on."""
    num_tokens: int
    """Of answers."""
    network: bool
    """Whether a network is made."""
    max_tokens: int
    """Of an answer that is measured."""

    @property
    def left_out(self) -> set[str]:
        """The prompts, by id, whose answers are not learned."""
        return {prompt.id for prompt in self.measured} - {prompt.id for prompt in self.prompts}

    @property
    def groups(self) -> list[PromptGroup]:
        """What is measured, prompt by prompt."""
        return workload.groups(self.measured, 1)


def run(llm: LLM, goal: Goal, command: str) -> dict[str, Any]:
    """Make, measure and keep; returns what came of it as JSON values. Of an LLM without a controller.

    `command` repeats the run. Only what wins is installed, and only what loses in this run is removed. Raises
    ForerunError.
    """
    tables = learn.drafters(llm)
    obstacle = network.obstacle(tables.default, goal.prompts)
    if obstacle is not None and goal.network:
        raise ConfigError(obstacle)
    with _states_kept(llm) if goal.network else nullcontext():
        made = learn.make(llm, goal.prompts, goal.left_out, goal.num_tokens)
    try:
        return _compare(llm, goal, tables, made, partial(_trained, llm, goal, command, obstacle))
    finally:
        made.path.unlink(missing_ok=True)


def _compare(
    llm: LLM,
    goal: Goal,
    tables: learn.Drafters,
    made: learn.Made,
    train: Callable[[], Path | None],
) -> dict[str, Any]:
    """Measure what was there and what is made in turns, and keep what wins."""
    figures = report.in_full(llm, goal.groups, goal.max_tokens, CostCurve({1: 1.0}))
    names = [*dict.fromkeys((tables.default, tables.before, tables.new))]
    taus = {name: figures(name).tau for name in names}
    is_better = all(taus[tables.new] > taus[name] for name in names[:-1])
    alone = tables.new if is_better else tables.before
    trained = train()
    networks = [] if trained is None else network.drafters(llm, trained, alone)
    taus |= {name: figures(name).tau for name in networks}
    row = report.compare(llm, [*names, *networks], goal.groups, goal.max_tokens)
    measured = {name: row(name, tables.default) for name in names}
    kept = None
    if is_better:
        kept = learn.install(llm, made)
    elif tables.has_own and _is_slower(measured[tables.before]):
        learn.path_of(llm).unlink()
    elif tables.has_own:
        kept = learn.path_of(llm)
    document = outcome.learned(made, measured, kept, is_new=is_better)
    of_network = None
    if trained is not None:
        *before, new = networks
        is_better = all(
            taus[new] > taus[name] and row(new, name)["over_baseline"] > 1
            for name in (alone, *before)
        )
        kept = network.own_folder(llm) if before else None
        if is_better:
            kept = network.install(llm, trained)
        elif before and _is_slower(row(before[0], alone)):
            network.remove(llm)
            kept = None
        of_network = outcome.of_network(row(new, alone), kept, trained, is_new=is_better)
    shown = [name for name in taus if name not in networks[:-1]]
    in_full = [round(taus[name], 4) for name in shown]
    return document | {"tau_in_full": in_full, "network": of_network}


def _is_slower(row: summary.Row) -> bool:
    """Tell whether the whole interval of a drafter's speed, over another's, lies below 1."""
    highest = row["over_baseline_hi"]
    return isinstance(highest, float) and highest < 1


def _states_kept(llm: LLM) -> AbstractContextManager[None]:
    from forerun.lab.tune import training  # which needs torch

    return training.states_kept(llm)


def _trained(llm: LLM, goal: Goal, command: str, obstacle: str | None) -> Path | None:
    """Say what a network takes, and train it if it is asked for; what fails is noted, the table stays."""
    if obstacle is not None:
        console.note(obstacle, dim=True)
        return None
    from forerun.lab.tune import times, training  # which need torch

    try:
        planned = training.NetworkRun(llm, goal.left_out)
        with console.working("timing what a network takes"):
            needed = times.needed(llm, planned)
        begun = ", a part of it done" if planned.is_begun else ""
        console.note(needed + begun + ("" if goal.network else ": --network trains it"), dim=True)
        return planned.train(command) if goal.network else None
    except ForerunError as error:
        console.note(f"no network: {error}", fg="red" if goal.network else None)
        return None
