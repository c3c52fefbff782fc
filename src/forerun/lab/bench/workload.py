"""What a benchmark asks: prompts of a task, a fair choice of them, and the groups that are decoded together.

It knows nothing of engines or clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from forerun.core.errors import ConfigError, check_least, unknown
from forerun.core.types import TaskPrompt
from forerun.hub.prompt_sets import BUILTIN, PUBLISHED, read


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Prompts of one category that are decoded together; measuring and resuming go by groups."""

    prompts: tuple[TaskPrompt, ...]

    @property
    def id(self) -> str:
        """The ids of its prompts, joined by +."""
        return "+".join(prompt.id for prompt in self.prompts)

    @property
    def category(self) -> str:
        """What the prompts have in common."""
        return self.prompts[0].category

    @property
    def num_steps(self) -> int:
        """Steps of the longest conversation."""
        return max(len(prompt.turns) for prompt in self.prompts)


def read_task(task: str, tasks_dir: Path | None) -> list[TaskPrompt]:
    """Read a file, `builtin`, a published set, or the task of that name in the folder. Raises ConfigError."""
    if task == BUILTIN or Path(task).suffix or (tasks_dir is None and task in PUBLISHED):
        return read(task)
    if tasks_dir is None:
        raise ConfigError(
            f"task '{task}' is not a file: say with --tasks-dir where {task}.jsonl lies"
        )
    known = [path.stem for path in tasks_dir.glob("*.jsonl")]
    if task not in known:
        raise ConfigError(unknown("task", task, [BUILTIN, *known]))
    return read(tasks_dir / f"{task}.jsonl")


def only(prompts: Sequence[TaskPrompt], categories: Sequence[str]) -> list[TaskPrompt]:
    """Return the prompts of these categories, in the file's order; all of them if none is named. Raises ConfigError."""
    known = dict.fromkeys(prompt.category for prompt in prompts)
    for category in categories:
        if category not in known:
            raise ConfigError(unknown("category", category, known))
    return [prompt for prompt in prompts if not categories or prompt.category in categories]


def choose(prompts: Sequence[TaskPrompt], limit: int | None) -> list[TaskPrompt]:
    """Choose `limit` prompts, spread evenly over the categories, in the file's order."""
    if limit is None or limit >= len(prompts):
        return list(prompts)
    check_least("limit", limit, 1)
    by_category: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        by_category.setdefault(prompt.category, []).append(i)
    dealt = [i for row in zip_longest(*by_category.values()) for i in row if i is not None]
    return [prompts[i] for i in sorted(dealt[:limit])]


def groups(prompts: Sequence[TaskPrompt], batch: int) -> list[PromptGroup]:
    """Make groups of at most `batch` prompts of one category, in the order in which they begin."""
    check_least("batch", batch, 1)
    by_category: dict[str, list[TaskPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    return [
        PromptGroup(tuple(group[start : start + batch]))
        for group in by_category.values()
        for start in range(0, len(group), batch)
    ]
