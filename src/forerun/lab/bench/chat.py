"""Long chats: conversations that take turns in one cache, and how long the first token of every turn takes.

Every turn sends the whole conversation again. Its earlier rows are found as long as they were not evicted; then they
are read again. Nothing fails as long as the conversation fits the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from forerun.cli import tables
from forerun.core.params import SamplingParams
from forerun.engine.scheduler import EVICTED
from forerun.llm import LLM

QUESTIONS = (
    "Name three rivers and the seas they flow into.",
    "Write a short poem about a lighthouse.",
    "Why is the sky blue? Answer in a few sentences.",
    "Write a Python function that adds two numbers.",
    "Tell me more about the last one.",
    "Give an example.",
    "Explain that to a child.",
    "Summarize what you have said so far.",
)
"""What users say, in turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of one conversation."""

    turn: int
    """From 1."""
    conversation: int
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, that were not read again."""
    new_tokens: int
    ttft_ms: float
    answer: tuple[int, ...]
    evicted_blocks: int
    """Of all idle prefixes, given up during the turn."""


def run(
    llm: LLM, params: SamplingParams, num_turns: int, num_conversations: int, what: str
) -> list[Turn]:
    """Hold each conversation's first turn, then each one's second, and so on, with a bar of progress."""
    talks: list[list[dict[str, str]]] = [[] for _ in range(num_conversations)]
    found, memory_steps = [], llm.engine.scheduler.memory_steps
    asked = [(turn, i) for turn in range(num_turns) for i in range(num_conversations)]
    for turn, i in tables.track(asked, what):
        question = QUESTIONS[(turn + 3 * i) % len(QUESTIONS)]
        talks[i].append({"role": "user", "content": f"{question} ({i + 1})"})
        before = memory_steps[EVICTED]
        (output,) = llm.chat(talks[i], params)
        (answer,) = output.outputs
        talks[i].append({"role": "assistant", "content": answer.text})
        found.append(
            Turn(
                turn + 1,
                i + 1,
                prompt_tokens=len(output.prompt_token_ids),
                cached_tokens=output.num_cached_tokens,
                new_tokens=len(answer.token_ids),
                ttft_ms=round(1e3 * (answer.ttft_s or 0.0), 3),
                answer=answer.token_ids,
                evicted_blocks=memory_steps[EVICTED] - before,
            )
        )
    return found


def show(turns: Sequence[Turn], different: int) -> None:
    """Print a line a turn: the conversations' mean."""
    rows = []
    for number in sorted({each.turn for each in turns}):
        same = [each for each in turns if each.turn == number]
        prompt, cached = (
            sum(getattr(e, f"{n}_tokens") for e in same) for n in ("prompt", "cached")
        )
        evicted = sum(each.evicted_blocks for each in same)
        first_ms = f"{fmean(each.ttft_ms for each in same):.1f}"
        rows.append((number, prompt, cached, prompt - cached, evicted, first_ms))
    columns = ("turn", "prompt tokens", "found again", "read", "evicted blocks", "first token ms")
    out = tables.report()
    out.print(tables.table(columns, rows))
    out.print(
        f"{len(turns)} answers, {different} of them not those of an engine with room for all."
    )
