"""How many questions of a task a model answers rightly. What answers is handed in: any drafter, or none.

Answers are greedy, so a score belongs to the weights and the arithmetic, not to the drafter: drafting changes no token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from types import ModuleType

from forerun.core.types import TaskPrompt
from forerun.engine.outputs import CompletionOutput
from forerun.lab.store import Store

Z = 1.96
"""Of a 95 % interval."""
COUNTS = ("passes", "emitted", "drafted", "accepted")


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """An answer, its verdict, and what was drafted for it."""

    text: str
    token_ids: tuple[int, ...]
    passes: int
    emitted: int
    drafted: int
    accepted: int
    seconds: float
    is_right: bool


Ask = Callable[[Sequence[str]], Sequence[CompletionOutput]]
"""Answers to some questions, asked together."""


def grade(
    task: ModuleType, prompts: Sequence[TaskPrompt], ask: Ask, store: Store, *, batch: int = 1
) -> Iterator[GradedAnswer]:
    """Answers with their verdicts, in the prompts' order; what the store holds is not asked again."""
    keys = [f"{i} {prompt.id}" for i, prompt in enumerate(prompts)]
    for first in range(0, len(prompts), batch):
        group = range(first, min(first + batch, len(prompts)))
        missing = [i for i in group if keys[i] not in store.results]
        if missing:
            begin_s = time.perf_counter()
            answers = ask([task.question(prompts[i]) for i in missing])
            seconds = (time.perf_counter() - begin_s) / len(missing)
            for i, answer in zip(missing, answers, strict=True):
                counts = {name: getattr(answer.stats, name) for name in COUNTS}
                is_right = task.is_right(prompts[i], answer.text)
                graded = GradedAnswer(
                    answer.text, answer.token_ids, **counts, seconds=seconds, is_right=is_right
                )
                store.add(keys[i], asdict(graded))
        for i in group:
            found = GradedAnswer(**store.results[keys[i]])  # type: ignore[arg-type]  # written above
            yield replace(found, token_ids=tuple(found.token_ids))


def document(answers: Sequence[GradedAnswer]) -> dict[str, object]:
    """The results of a task under the names every document uses; the interval is Wilson's, of 95 %."""
    num_right = sum(answer.is_right for answer in answers)
    low, high = interval(num_right, len(answers))
    passes, drafted = sum(a.passes for a in answers), sum(a.drafted for a in answers)
    accepted = sum(a.accepted for a in answers)
    return {
        "prompts": len(answers),
        "right": num_right,
        "score": round(num_right / len(answers), 4),
        "score_lo": round(low, 4),
        "score_hi": round(high, 4),
        "tokens": sum(len(a.token_ids) for a in answers),
        "seconds": round(sum(a.seconds for a in answers), 3),
        "tau": round(sum(a.emitted for a in answers) / passes, 3) if passes else 0.0,
        "drafted": drafted,
        "accepted": accepted,
        "rejected": drafted - accepted,
        "acceptance_rate": round(accepted / drafted, 4) if drafted else 0.0,
    }


def interval(num_right: int, num: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    share, z2 = num_right / num, Z * Z / num
    centre = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(share * (1 - share) / num + z2 / (4 * num)) * Z / (1 + z2)
    return max(0.0, centre - half), min(1.0, centre + half)
