"""What a model answers, by the thousand: the text that tables and trained drafters are made of.

Every prompt is answered by the target itself through the batched engine, drafting included, and kept as token ids with
the prompt's. Temperatures go round by prompt, half of them greedy: a served model is asked both ways. Each
answer is written at once, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from forerun.core.errors import CapacityError
from forerun.core.params import SamplingParams
from forerun.core.store import Store
from forerun.core.types import TaskPrompt

if TYPE_CHECKING:
    from forerun.engine.loop import EngineLoop, RequestHandle

TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
MAX_TOKENS = 256
"""Of an answer: after that many tokens it has shown how the model speaks."""


Encode = Callable[[str], Sequence[int]]
"""Token ids of a user's message, through the chat template where there is one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and what the model said to it, as token ids."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def kept(store: Store) -> Iterator[Answer]:
    """The answers that a store holds."""
    for row in store.results.values():
        prompt, tokens = row["prompt"], row["answer"]
        yield Answer(tuple(cast(list[int], prompt)), tuple(cast(list[int], tokens)))


def generate(
    loop: EngineLoop,
    encode: Encode,
    prompts: Iterable[TaskPrompt],
    store: Store,
    num_tokens: int,
) -> Iterator[int]:
    """Answer prompts until the store holds `num_tokens` tokens of answers; yields how many it holds.

    Rounds beyond the first ask the same prompts with other seeds and temperatures. Prompts that leave no room for
    an answer are passed over.
    """
    prompts = list(prompts)
    done = sum(len(answer.tokens) for answer in kept(store))
    yield done
    waiting = _requests(loop, encode, prompts, store)
    running: dict[str, tuple[float, RequestHandle]] = {}
    while done < num_tokens:
        while (
            len(running) < 2 * loop.engine.config.max_num_seqs
            and (entry := next(waiting, None)) is not None
        ):
            running[entry[0]] = entry[1:]
        if not running:
            return
        loop.step()
        for key, (temperature, request) in [*running.items()]:
            request.news.clear()
            if request.is_finished:
                del running[key]
                output = request.output()
                answer = output.outputs[0].token_ids
                ids = {"prompt": output.prompt_token_ids, "answer": answer}
                store.add(key, {"temperature": temperature, **ids})
                done += len(answer)
        yield done
    for _, request in running.values():
        request.cancel()


def _requests(
    loop: EngineLoop, encode: Encode, prompts: Sequence[TaskPrompt], store: Store
) -> Iterator[tuple[str, float, RequestHandle]]:
    """Submit what the store lacks, round after round; ends when no prompt can be answered."""
    round_ = 0
    can_answer = True
    while can_answer:
        can_answer = False
        for prompt in prompts:
            key = f"{prompt.id}/{round_}"
            if key in store.results:
                can_answer = True
                continue
            number = zlib.crc32(prompt.id.encode())
            temperature = TEMPERATURES[(number + round_) % len(TEMPERATURES)]
            params = SamplingParams(
                temperature=temperature, seed=number + round_, max_tokens=MAX_TOKENS
            )
            try:
                request = loop.submit(encode(prompt.turns[0]), params)
            except CapacityError:
                continue
            can_answer = True
            yield key, temperature, request
        round_ += 1
