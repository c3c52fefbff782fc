"""What a model answers, by the thousand: the text that tables and trained drafters are made of.

Every prompt is answered by the target itself through the batched engine, drafting included, and kept as token ids with
the prompt's. A prompt is answered greedily once, in the first round or the second, and else at several temperatures:
a served model is asked both ways. Each answer is written at once, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

from forerun.core.errors import CapacityError, ConfigError
from forerun.core.params import SamplingParams
from forerun.core.store import Store
from forerun.core.types import TaskPrompt
from forerun.drafters._table_file import tables_dir

if TYPE_CHECKING:
    from forerun.engine.loop import EngineLoop, RequestHandle
    from forerun.train.table import Text

SAMPLED = (0.7, 1.0)
"""Temperatures of the answers that are not greedy."""
MAX_TOKENS = 256
"""Of an answer: after that many tokens it has shown how the model speaks."""

Encode = Callable[[str], Sequence[int]]
"""Token ids of a user's message, through the chat template where there is one."""


def default_path(model: str) -> Path:
    """Where the answers of a model are kept, by its short name."""
    return tables_dir() / f"{model}.answers.jsonl"


def open_store(model: str, vocabulary: str, path: Path) -> Store:
    """The answers in a file, which may be new. Raises ConfigError for those of another model or tokenizer."""
    return Store({"model": model, "vocabulary": vocabulary, "max_tokens": MAX_TOKENS}, path)


def kept(store: Store) -> Iterator[Text]:
    """The answers that a store holds, with their prompts. Raises ConfigError for a row that is none."""
    for key, row in store.results.items():
        ids = [row.get("prompt"), row.get("answer")]
        if not all(isinstance(each, list | tuple) for each in ids):
            raise ConfigError(
                f"{store.path}: '{key}' is no answer: it needs prompt and answer, token ids"
            )
        prompt, tokens = cast(list[Sequence[int]], ids)
        yield tuple(prompt), tuple(tokens)


def generate(
    loop: EngineLoop,
    encode: Encode,
    prompts: Iterable[TaskPrompt],
    store: Store,
    num_tokens: int,
) -> Iterator[int]:
    """Answer prompts until the store holds `num_tokens` tokens of answers; yields how many it holds.

    Rounds beyond the first ask the same prompts with other seeds and temperatures. Prompts that leave no room for
    an answer are passed over; it ends early if none can be answered.
    """
    done = sum(len(tokens) for _, tokens in kept(store))
    yield done
    prompts = list(prompts)
    categories = {prompt.id: prompt.category for prompt in prompts}
    waiting = _requests(loop, encode, prompts, store)
    running: dict[str, tuple[float, RequestHandle]] = {}
    try:
        while done < num_tokens:
            room = 2 * loop.engine.config.max_num_seqs - len(running)
            running |= {entry[0]: entry[1:] for entry in islice(waiting, room)}
            if not running:
                return
            loop.step()
            for key, (temperature, request) in [*running.items()]:
                if request.is_finished:
                    del running[key]
                    output = request.output()
                    answer = output.outputs[0].token_ids
                    category = categories[key.rpartition("/")[0]]
                    ids = {"prompt": output.prompt_token_ids, "answer": answer}
                    store.add(key, {"category": category, "temperature": temperature, **ids})
                    done += len(answer)
            yield done
    finally:
        for _, request in running.values():
            request.cancel()


def _requests(
    loop: EngineLoop, encode: Encode, prompts: Sequence[TaskPrompt], store: Store
) -> Iterator[tuple[str, float, RequestHandle]]:
    """Submit what the store lacks, round after round; ends when no prompt can be answered."""
    can_answer = True
    for round_ in count():
        if not can_answer:
            return
        can_answer = False
        for prompt in prompts:
            key = f"{prompt.id}/{round_}"
            if key in store.results:
                can_answer = True
                continue
            number = zlib.crc32(prompt.id.encode())
            temperature, seed = _temperature(number, round_), number + round_
            params = SamplingParams(temperature=temperature, seed=seed, max_tokens=MAX_TOKENS)
            try:
                request = loop.submit(encode(prompt.turns[0]), params, sink=lambda event: None)
            except CapacityError:
                continue
            can_answer = True
            yield key, temperature, request


def _temperature(number: int, round_: int) -> float:
    """Of a prompt's answer in a round: a second greedy one would be the same."""
    if round_ == number % 2:
        return 0.0
    return SAMPLED[(number // 2 + round_) % len(SAMPLED)]
