"""What a drafter brings on machines with other prices of rows: `python -m dev.row_prices MODEL PROMPTS ... [-d auto]`.

The model runs here and gives the tokens; what a pass and a draft take is read from a table, so one machine tells about
all and load makes no difference. Prints tokens a unit of time over plain decoding, for the controller and fixed sizes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from forerun import LLM
from forerun._native import CostCurve
from forerun.core.params import SamplingParams
from forerun.engine.controller import Adaptive, Controller, Fixed
from forerun.engine.sequence import SequenceStep
from forerun.hub.prompt_sets import read
from tests.engine.recorded import AVX2, AVX512

SIZES = (3, 5, 7, 11, 15)
UNIT_S = 0.01
"""Seconds that a plain pass is said to take: any would do."""


class Machine(NamedTuple):
    """Costs in plain passes: of passes by their rows, of a draft, and of each of its nodes."""

    passes: CostCurve
    draft: float
    node: float


MACHINES = {
    "AVX2, 2 cores": Machine(AVX2, 0.05, 0.004),
    "AVX-512, 2 cores": Machine(AVX512, 0.05, 0.004),
    "Xeon, 8B": Machine(CostCurve({1: 1.0, 4: 1.05, 8: 1.15, 16: 1.35, 32: 2.3}), 0.02, 0.0004),
    "8 cores": Machine(CostCurve({1: 1.0, 8: 1.0, 16: 1.1, 32: 1.5}), 0.03, 0.002),
    "16 cores": Machine(CostCurve({1: 1.0, 16: 1.0, 32: 1.15}), 0.03, 0.002),
}
"""The first two as measured; the others are what bytes and operations say."""


class Clock(Controller):
    """A controller that is told a machine's costs instead of the time that passed."""

    def __init__(self, inner: Controller, machine: Machine) -> None:
        self.inner, self.machine = inner, machine
        self.num_tokens = self.num_passes = self.num_rows = 0
        self.cost = 0.0

    def budgets(
        self, steps: Sequence[SequenceStep], num_others: int = 0, *, is_reading: bool = False
    ) -> None:
        """Let the controller choose."""
        self.inner.budgets(steps, num_others, is_reading=is_reading)

    def trim(self, steps: Sequence[SequenceStep]) -> None:
        """Let the controller choose."""
        self.inner.trim(steps)

    def learn(
        self,
        steps: Sequence[SequenceStep],
        num_rows: int,
        draft_s: float,
        pass_s: float,
        num_read: int = 0,
    ) -> None:
        """Count the pass at the machine's prices, unless it read a prompt."""
        passes, draft, node = self.machine
        asked = sum(draft + node * len(step.proposed) for step in steps if step.budget)
        cost = passes.predict(num_rows)
        self.inner.learn(steps, num_rows, asked * UNIT_S, cost * UNIT_S, num_read)
        if not num_read:
            self.num_passes, self.num_rows = self.num_passes + 1, self.num_rows + num_rows
            self.num_tokens += sum(len(step.outcome.emitted) for step in steps)
            self.cost += asked + cost


def run(model: str, drafter: str, prompts: Sequence[str], length: int, clock: Clock) -> str:
    """Answer the prompts one by one with a fresh drafter; return the figures."""
    llm = LLM(
        model, drafter=drafter, controller=isinstance(clock.inner, Adaptive), max_model_len=2048
    )
    llm.engine.proposer.controller = clock
    for prompt in prompts:
        llm.submit(
            [{"role": "user", "content": prompt}], SamplingParams(temperature=0, max_tokens=length)
        )
        while llm.engine.has_work:
            llm.engine.step()
    tau, rows = (n / clock.num_passes for n in (clock.num_tokens, clock.num_rows))
    return f"{clock.num_tokens / clock.cost:.3f} (tau {tau:.3f}, rows {rows:.1f})"


def main() -> None:
    """Print a line for each machine and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("prompts", nargs="+", help="files of prompts")
    parser.add_argument("-d", "--drafter", default="auto")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--limit", type=int, default=12, help="prompts, evenly taken")
    parser.add_argument("--fixed", action="store_true", help="fixed sizes, too")
    args = parser.parse_args()
    found = [prompt.turns[0] for prompt in chain.from_iterable(map(read, args.prompts))]
    found = [prompt for prompt in found if len(prompt) < 4000]
    chosen = found[:: max(1, len(found) // args.limit)][: args.limit]
    for name, machine in MACHINES.items():
        controllers = {"auto": lambda: Adaptive(63)}
        if args.fixed:
            controllers |= {str(k): lambda k=k: Fixed(k) for k in SIZES}
        for label, controller in controllers.items():
            clock = Clock(controller(), machine)
            figures = run(args.model, args.drafter, chosen, args.max_tokens, clock)
            print(f"{name:18s} {label:>4s}  {figures}", flush=True)


if __name__ == "__main__":
    main()
