"""Worlds in which a controller is measured: known costs, known chances, no clock and no model.

A world drafts, verifies and counts; the controller sees what the engine would tell it. Everything that is random comes
from a seed of its own, and a step's drafts and luck do not depend on what the controller chose before.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from forerun._native import CostCurve
from forerun.core import tree
from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.engine.controller import Controller
from forerun.engine.sequence import SequenceStep

WRONG = 10**6
"""A token that is in no draft."""
Drawn = tuple[Draft, tuple[int, ...]]
"""A whole draft, and the tokens that the target says."""
drawn_once = lru_cache(1 << 15)
"""What a step brings is the same for all that are compared, and takes longer to draw than to verify."""


@dataclass
class World:
    """Chains without confidence; the chance that a guess is right may change with time."""

    row_s: float = 0.1
    draft_s: Callable[[int], float] = lambda num_nodes: 0.0
    """Of a proposal for all sequences, by their nodes together."""
    acceptance: Callable[[int, int], float] = lambda step, seq: 0.5
    says_something: float = 1.0
    length: int = 8
    noise: float = 0.0
    slowdown: Callable[[int], float] = lambda step: 1.0
    """Of the machine in a step; the controller sees it, the result too."""
    hiccups: float = 0.0
    """The share of passes that take three times as long. The result is counted without them."""
    context: Callable[[int], int] = lambda step: 1
    """Tokens before a step."""
    key_s: float = 0.0
    """Of a row's attention to a thousand of them."""
    seed: int = 7
    budgets: list[dict[int, int]] = field(default_factory=list)
    kept: list[dict[int, int]] = field(default_factory=list)

    def run(
        self,
        controller: Controller,
        num_steps: int,
        num_seqs: int = 1,
        *,
        num_tokens: float = float("inf"),
    ) -> float:
        """Tokens a second, in so many steps or the first tokens of a fresh process."""
        seqs = [Seq(i, [1], SamplingParams(temperature=0), 0) for i in range(num_seqs)]
        clock = random.Random(self.seed)
        tokens, seconds, step = 0, 0.0, 0
        while step < num_steps and tokens < num_tokens:
            context = self.context(step)
            for seq in seqs:
                if len(seq.tokens) != context:
                    seq.tokens[:] = [1] * context
            steps = [step_of(seq) for seq in seqs]
            controller.budgets(steps)
            drawn = [self.draft(step, seq.id) for seq in seqs]
            asked = [each for each in steps if each.budget]
            for each in asked:
                each.draft = each.proposed = drawn[each.seq.id][0].trim(each.budget)
            draft_s = self.ask_s([each.draft for each in asked]) if asked else 0.0
            controller.trim(asked)
            for each, (_, right) in zip(steps, drawn, strict=True):
                each.outcome = verified(each.draft, right)
            num_rows = num_seqs + sum(len(each.draft) for each in steps)
            pass_s = self.pass_s(num_rows) + num_rows * self.key_s * context / 1000
            slow = self.slowdown(step) * clock.uniform(1 - self.noise, 1 + self.noise)
            hiccup = 3.0 if clock.random() < self.hiccups else 1.0
            controller.learn(steps, num_rows, draft_s * slow, pass_s * slow * hiccup)
            self.budgets.append({each.seq.id: each.budget for each in steps})
            self.kept.append({each.seq.id: len(each.draft) for each in steps})
            seconds += (draft_s + pass_s) * slow
            tokens += sum(len(each.outcome.emitted) for each in steps)
            step += 1
        return tokens / seconds

    def pass_s(self, num_rows: int) -> float:
        """A pass of so many rows."""
        return 1 + self.row_s * (num_rows - 1)

    def ask_s(self, drafts: Sequence[Draft]) -> float:
        """A proposal of these drafts."""
        return self.draft_s(sum(map(len, drafts)))

    def draft(self, step: int, seq: int) -> Drawn:
        """What a step of a sequence brings."""
        what = self.says_something, self.acceptance(step, seq), self.length
        return _chain(f"{self.seed} {step} {seq}", *what)


def step_of(seq: Seq) -> SequenceStep:
    """A step of a sequence, as far as a controller looks at it."""
    return SequenceStep(seq, None, (), 0)


def verified(draft: Draft, right: Sequence[int]) -> Outcome:
    """What the step makes of a draft, if the target says these tokens."""
    below, path, node = tree.children(draft.parents), [], -1
    for token in right:
        found = next((i for i in below.get(node, ()) if draft.tokens[i] == token), None)
        if found is None:
            break
        path.append(found)
        node = found
    return Outcome(tuple(path), tuple(right[: len(path) + 1]))


@drawn_once
def _chain(seed: str, says_something: float, chance: float, length: int) -> Drawn:
    rng = random.Random(seed)
    if rng.random() >= says_something:
        return EMPTY_DRAFT, (WRONG,)
    right = 0
    while right < length and rng.random() < chance:
        right += 1
    return Draft.chain([*range(length)]), (*range(right), WRONG)


NEW_ROWS = CostCurve({1: 1.0, 4: 1.15, 8: 1.6, 16: 2.6, 32: 5.0})


@dataclass
class Trees(World):
    """A drafter that always has a tree, best first, and says of each node how likely it is.

    The true chance of a node is what is said to the power of `doubt`: above 1 it says too much.
    """

    passes: CostCurve = field(default_factory=lambda: NEW_ROWS)
    ask: float = 0.01
    nodes: int = 11
    doubt: float = 1.0
    ease: Callable[[int], float] = lambda seq: 1.0
    """Above 1 what is easy to guess is more frequent."""

    def pass_s(self, num_rows: int) -> float:
        return self.passes.predict(num_rows)

    def ask_s(self, drafts: Sequence[Draft]) -> float:
        return self.ask * len(drafts)

    def draft(self, step: int, seq: int) -> Drawn:
        return _tree(f"{self.seed} {step} {seq}", self.nodes, self.doubt, self.ease(seq))


@dataclass
class Routed(Trees):
    """A pass reads the experts that its rows choose, each once: rows of one size cost now more, now less."""

    num_experts: int = 64
    num_active: int = 8
    share: float = 0.8
    """Of a plain pass that its experts take."""
    repeats: float = 0.3
    """The chance that a row chooses as the row before it."""
    luck: random.Random = field(default_factory=lambda: random.Random(3))

    def pass_s(self, num_rows: int) -> float:
        chosen: list[int] = []
        read: set[int] = set()
        for _ in range(num_rows):
            if not chosen or self.luck.random() >= self.repeats:
                chosen = self.luck.sample(range(self.num_experts), self.num_active)
            read.update(chosen)
        return 1 - self.share + self.share * len(read) / self.num_active


@drawn_once
def _tree(seed: str, num_nodes: int, doubt: float, ease: float) -> Drawn:
    rng = random.Random(seed)
    heap: list[tuple[float, int, int, float]] = []
    parents: list[int] = []
    said: list[float] = []
    reach, node, serial = 1.0, -1, 0
    while len(parents) < num_nodes:
        rest = 1.0
        sure = rng.betavariate(0.7 * ease, 1.0)
        for _ in range(3):
            chance = rest * sure
            rest -= chance
            serial += 1
            heapq.heappush(heap, (-reach * chance, serial, node, chance))
            sure *= 0.6
        best, _, parent, chance = heapq.heappop(heap)
        reach, node = -best, len(parents)
        parents.append(parent)
        said.append(min(max(chance, 1e-6), 1.0))
    draft = Draft((*range(num_nodes),), (*parents,), confidence=(*said,))
    return draft, _truth(rng, draft, doubt)


def _truth(rng: random.Random, draft: Draft, doubt: float) -> tuple[int, ...]:
    """The path that comes true, and a token behind it."""
    below, found, node = tree.children(draft.parents), [], -1
    while node is not None:
        luck, node_next = rng.random(), None
        for child in below.get(node, ()):
            luck -= draft.confidence[child] ** doubt
            if luck < 0:
                node_next = child
                break
        if node_next is not None:
            found.append(node_next)
        node = node_next
    return (*found, WRONG)


@dataclass
class Oracle(Controller):
    """Knows all costs and chances, and what time is worth: for one sequence of a calibrated drafter."""

    world: Trees
    rate: float

    def budgets(
        self, steps: Sequence[SequenceStep], num_others: int = 0, *, is_reading: bool = False
    ) -> None:
        for step in steps:
            step.budget = self.world.nodes

    def trim(self, steps: Sequence[SequenceStep]) -> None:
        (step,) = steps
        draft, reach = step.draft, []
        for node, parent in enumerate(draft.parents):
            above = reach[parent] if parent >= 0 else 1.0
            reach.append(above * draft.confidence[node] ** self.world.doubt)
        nets = [
            sum(reach[:k]) - self.rate * self.world.pass_s(1 + k) for k in range(len(draft) + 1)
        ]
        step.draft = draft.trim(nets.index(max(nets)))

    @classmethod
    def rate_of(cls, world: Callable[[], Trees], num_steps: int) -> float:
        """Its tokens a second, with the best worth of time: Dinkelbach's method."""
        rate = 1.0
        for _ in range(3):
            rate = world().run(cls(world(), rate), num_steps)
        return rate
