"""`forerun tune` without -d: answers, a table, a network if it is expected to pay; what is better is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forerun.cli import console
from forerun.core.costs import CostCurve
from forerun.core.errors import ConfigError, ForerunError
from forerun.core.types import TaskPrompt
from forerun.lab.bench import workload
from forerun.lab.bench.workload import PromptGroup
from forerun.lab.tune import learn, network, outcome, report
from forerun.lab.tune.estimate import estimate
from forerun.llm import LLM

PASSES = 5
"""Of each size, whose median the estimate takes."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked for."""

    prompts: Sequence[TaskPrompt]
    """To learn from."""
    measured: Sequence[TaskPrompt]
    """To measure on."""
    num_tokens: int
    """Of answers."""
    network: bool | None
    """Whether a network is made; None: if it is expected to pay."""
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

    `command` repeats the run. Raises ForerunError.
    """
    names = [*learn.drafters(llm)]
    is_wanted = wants_network(llm, goal, names[0])
    made = learn.make(llm, goal.prompts, goal.left_out, goal.num_tokens)
    figures = report.in_full(llm, goal.groups, goal.max_tokens, CostCurve({1: 1.0}))
    taus = [figures(name).tau for name in names]
    is_kept = taus[1] > taus[0]
    alone = names[is_kept]
    trained = None if is_wanted is None else _trained(llm, goal, command, is_wanted=is_wanted)
    if trained is not None:
        names.append(f"{network.KIND}:model={trained}++{alone.rpartition('++')[2]}")
        taus.append(figures(names[-1]).tau)
    row = report.compare(llm, names, goal.groups, goal.max_tokens)
    if not is_kept:
        made.path.unlink()
    document = outcome.learned(made, [row(name, names[0]) for name in names], taus, is_kept=is_kept)
    if trained is None:
        return document | {"network": None}
    of_network, own = row(names[-1], alone), None
    if taus[-1] > taus[is_kept] and of_network["over_baseline"] > 1:
        own = network.install(llm, trained)
    else:
        network.remove(llm)
    return document | {"network": outcome.of_network(of_network, own, trained)}


def wants_network(llm: LLM, goal: Goal, default: str) -> bool | None:
    """Say what a network takes and brings, and tell whether one is made; None: none may be, whatever it brings.

    Raises ConfigError if one is asked for that cannot be.
    """
    if goal.network is False:
        return None
    if (reason := network.obstacle(default, goal.prompts)) is not None:
        if goal.network:
            raise ConfigError(reason)
        console.note(reason, dim=True)
        return None
    plain_ms, costs = report.time_passes(llm, PASSES)
    before = report.in_full(llm, goal.groups, goal.max_tokens, costs)(default)
    begin = network.Beginning.of(llm, np.arange(network.draft_vocab(llm.model.config.vocab_size)))
    with console.working("timing what a network takes"):
        expected = estimate(llm, begin, goal.prompts, goal.num_tokens, before, plain_ms, costs)
    for line in expected.lines(goal.network):
        console.note(line, dim=True)
    return goal.network or expected.pays


def _trained(llm: LLM, goal: Goal, command: str, *, is_wanted: bool) -> Path | None:
    """Train a network that is wanted, or that an earlier run began; what fails is noted, the table stays."""
    try:
        planned = network.NetworkRun(llm, goal.left_out)
        return planned.train(command) if is_wanted or planned.is_begun else None
    except ForerunError as error:
        if is_wanted:
            console.note(f"no network: {error}", fg="red")
        return None
