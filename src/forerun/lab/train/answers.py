"""What a model answers, by the thousand: the text that tables and trained drafters are made of.

Every prompt is answered by the target itself through the batched engine, drafting included, and kept as token ids with
the prompt's. A prompt is answered greedily once, in the first round or the second, and else at several temperatures:
a served model is asked both ways. A prompt of several turns is a conversation: its next turn is asked after the model's
own answer. Each answer is written at once, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, cycle, islice
from pathlib import Path
from typing import cast

from forerun.cli import console, tables
from forerun.core.errors import CapacityError, ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import TaskPrompt
from forerun.drafters.base.ngram.counting import Text
from forerun.drafters.base.vocabulary import fingerprint
from forerun.engine.loop import EngineLoop, Request
from forerun.hub.names import cache_root, name_of
from forerun.lab.store import Store
from forerun.llm import LLM

SAMPLED = (0.7, 1.0)
"""Temperatures of the answers that are not greedy."""
MAX_TOKENS = 256
"""Of an answer: after that many tokens it has shown how the model speaks."""

Encode = Callable[[Sequence[Sequence[int] | str]], Sequence[int]]
"""Token ids of a conversation: the user's messages, and in between the answers' token ids."""


def default_path(model: str) -> Path:
    """Return the file for the answers of a model, by its short name."""
    return cache_root() / "tables" / f"{model}.answers.jsonl"


def open_store(model: str, vocabulary: str, path: Path) -> Store:
    """Open the answers in a file, which may be new. Raises ConfigError for those of another model or tokenizer."""
    return Store({"model": model, "vocabulary": vocabulary, "max_tokens": MAX_TOKENS}, path)


def answers_in(store: Store) -> Iterator[Text]:
    """Yield the answers in a store, with their prompts. Raises ConfigError for a row that is none."""
    for key, row in store.results.items():
        ids = [row.get("prompt"), row.get("answer")]
        if not all(isinstance(each, list | tuple) for each in ids):
            raise ConfigError(
                f"{store.path}: '{key}' is not an answer: it needs prompt and answer, token ids"
            )
        prompt, tokens = cast(list[Sequence[int]], ids)
        yield tuple(prompt), tuple(tokens)


@dataclass(frozen=True, slots=True)
class PromptTurn:
    """One turn of a prompt in one round."""

    prompt: TaskPrompt
    round: int
    index: int = 0

    @property
    def key(self) -> str:
        """Of its answer in the store."""
        return f"{self.prompt.id}/{self.round}" + (f".{self.index}" if self.index else "")

    @property
    def params(self) -> SamplingParams:
        """How it is answered."""
        number = zlib.crc32(self.prompt.id.encode())
        temperature, seed = _temperature(number, self.round), number + self.round
        return SamplingParams(temperature=temperature, seed=seed, max_tokens=MAX_TOKENS)

    @property
    def next(self) -> PromptTurn | None:
        """The turn after it; None after the last."""
        index = self.index + 1
        return (
            PromptTurn(self.prompt, self.round, index) if index < len(self.prompt.turns) else None
        )

    def conversation(self, store: Store) -> list[Sequence[int] | str]:
        """Return the conversation up to this turn, with the answers in the store."""
        messages: list[Sequence[int] | str] = []
        for index, text in enumerate(self.prompt.turns[: self.index]):
            answer = store.results[PromptTurn(self.prompt, self.round, index).key]["answer"]
            messages += [text, cast(Sequence[int], answer)]
        return [*messages, self.prompt.turns[self.index]]


def generate(
    loop: EngineLoop, encode: Encode, prompts: Iterable[TaskPrompt], store: Store, num_tokens: int
) -> Iterator[int]:
    """Answer prompts until the store holds `num_tokens` tokens of answers; yields how many it holds.

    Rounds beyond the first ask the same prompts with other seeds and temperatures. Prompts that leave no room for
    an answer are passed over; it ends early if none can be answered.
    """
    done = sum(len(tokens) for _, tokens in answers_in(store))
    yield done
    follow_ups: deque[PromptTurn] = deque()
    submitted = _submitted(loop, encode, [*prompts], follow_ups, store)
    running: dict[str, tuple[PromptTurn, Request]] = {}
    try:
        while done < num_tokens:
            num_more = 2 * loop.engine.config.max_num_seqs - len(running)
            running |= {turn.key: (turn, request) for turn, request in islice(submitted, num_more)}
            if not running:
                return
            loop.step()
            for turn, request in [*running.values()]:
                if request.is_finished:
                    del running[turn.key]
                    done += _keep(turn, request, store)
                    if (after := turn.next) is not None:
                        follow_ups.append(after)
            yield done
    finally:
        for _, request in running.values():
            request.cancel()


def fill(llm: LLM, prompts: Iterable[TaskPrompt], path: Path, num_tokens: int) -> Store:
    """Answer prompts until the file has so many tokens; Ctrl-C leaves a note of the progress. Raises ConfigError."""
    store = open_store(name_of(llm.path), fingerprint(llm.tokenizer), path)

    def encode(conversation: Sequence[Sequence[int] | str]) -> Sequence[int]:
        texts = [
            message if isinstance(message, str) else llm.tokenizer.decode(message)
            for message in conversation
        ]
        if llm.tokenizer.chat_template is None:
            return llm.encode("".join(texts))
        roles = cycle(("user", "assistant"))
        return llm.encode([{"role": next(roles), "content": text} for text in texts])

    done = 0
    try:
        with tables.counter("answering", num_tokens) as show:
            for done in generate(llm.loop, encode, prompts, store, num_tokens):
                show(done)
    except KeyboardInterrupt:
        console.note(
            f"{done} of {num_tokens} tokens are in {store.path}; the same command goes on", dim=True
        )
        raise
    if done < num_tokens:
        raise ConfigError(
            "no prompt fits into the model's context with room for an answer: give shorter ones, or raise "
            "--max-model-len"
        )
    return store


def _keep(turn: PromptTurn, request: Request, store: Store) -> int:
    """Write an answer; its tokens."""
    output = request.output()
    answer = output.outputs[0].token_ids
    how = {"category": turn.prompt.category, "temperature": turn.params.temperature}
    store.add(turn.key, {**how, "prompt": output.prompt_token_ids, "answer": answer})
    return len(answer)


def _submitted(
    loop: EngineLoop,
    encode: Encode,
    prompts: Sequence[TaskPrompt],
    follow_ups: deque[PromptTurn],
    store: Store,
) -> Iterator[tuple[PromptTurn, Request]]:
    """Submit what the store lacks: turns that follow, then round after round; ends when no prompt can be answered."""
    can_answer = True
    for round_ in count():
        if not can_answer:
            return
        can_answer = False
        for prompt in prompts:
            first: PromptTurn | None = PromptTurn(prompt, round_)
            while first is not None and first.key in store.results:
                can_answer, first = True, first.next
            for turn in chain(_popped(follow_ups), [first] if first is not None else []):
                try:
                    request = loop.submit(
                        encode(turn.conversation(store)), turn.params, sink=lambda event: None
                    )
                except CapacityError:
                    continue
                can_answer = True
                yield turn, request


def _popped(turns: deque[PromptTurn]) -> Iterator[PromptTurn]:
    while turns:
        yield turns.popleft()


def _temperature(number: int, round_: int) -> float:
    """Of a prompt's answer in a round: a second greedy one would be the same."""
    if round_ == number % 2:
        return 0.0
    return SAMPLED[(number // 2 + round_) % len(SAMPLED)]
