"""Cut a draft's head to the tokens that its target generates most, and measure what lists of each size bring.

Source: VocabTrim (arXiv 2506.22694), which counts what the target generates, keeps the commonest, and reports MBSU: the
tokens of a pass over what its drafting costs, tau / (c gamma + 1), where c is what a step of the draft reads of a pass.

V vocabulary, n tokens of a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.core.arrays import Ids
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import TaskPrompt
from forerun.drafters.base.vocabulary import fingerprint
from forerun.engine.engine import Engine
from forerun.hub.names import name_of, resolve
from forerun.lab import store
from forerun.lab.bench import summary, workload
from forerun.lab.bench.run import Bench, EngineSystem
from forerun.lab.bench.summary import Row
from forerun.lab.output import Column, show_table, writing
from forerun.lab.store import Store
from forerun.lab.train.answers import answers_in, default_path
from forerun.llm import LLM
from forerun.model.config import ModelConfig
from forerun.model.model import Model, pass_nbytes
from forerun.model.shapes import flops_per_token
from forerun.system.files import read_text

SIZES = (2048, 4096, 8192, 16384, 32768, 65536)
"""Lists that are tried, against the whole head."""
ROUNDS = 3
"""Times that every prompt is answered with every list; the machine is never quite still."""
WHOLE = "all"

Counts = NDArray[np.int64]


def count(texts: Iterable[Sequence[int]], vocab_size: int) -> Counts:
    """Count how often each token comes (V,). Ids beyond the vocabulary are left out."""
    counts = np.zeros(vocab_size, np.int64)
    for text in texts:
        ids = np.asarray(text, np.int64)
        counts += np.bincount(ids[ids < vocab_size], minlength=vocab_size)
    return counts


def ranked(counts: Counts) -> list[int]:
    """Sort the commonest first; of equal ones the lower id, which was frequent where the vocabulary was made."""
    ids: list[int] = np.argsort(-counts, kind="stable").tolist()
    return ids


def coverage(counts: Counts, tokens: Ids | None) -> float:
    """Return the share of what was counted that a list has."""
    if tokens is None:
        return 1.0
    return float(counts[tokens].sum() / max(1, counts.sum()))


def cost(draft: ModelConfig, target: ModelConfig, size: int | None) -> float:
    """Return what a step of the draft reads, its head cut to `size` tokens, as a share of a pass of the target."""
    saved = 0 if size is None else 2 * draft.hidden_size * (draft.vocab_size - size)
    return (flops_per_token(draft) - saved) / flops_per_token(target)


def cost_by_bytes(draft: Model, target: Model, size: int | None) -> float:
    """Return the same of models that are loaded, by bytes: either may be rounded."""
    from forerun.model.loader import step_nbytes

    return step_nbytes(draft.config, draft.nbytes(), size) / pass_nbytes(target)


def mbsu(tau: float, cost: float, num_draft: int) -> float:
    """Return the memory-bound speed-up: tokens of a pass over what its drafting costs."""
    return tau / (1 + cost * num_draft)


def counted(llm: LLM, answers: Path | None, texts: Path | None, vocab_size: int) -> Counts:
    """Count the tokens of the target's answers and of a text. Raises ConfigError where there is nothing."""
    if answers is None and texts is None:
        name = name_of(llm.path)
        answers = default_path(name)
        if not answers.exists():
            raise ConfigError(
                f"there are no answers of {name} to count: forerun train table makes them, or give "
                "--answers or --texts"
            )
    counts = count(_texts(llm, answers, texts), vocab_size)
    if not counts.any():
        raise ConfigError(f"{answers or texts} holds no tokens to count")
    return counts


def _texts(llm: LLM, answers: Path | None, texts: Path | None) -> Iterator[Sequence[int]]:
    if answers is not None:
        origin, results = store.read(answers)
        if (stored := origin.get("vocabulary")) != (own := fingerprint(llm.tokenizer)):
            raise ConfigError(
                f"{answers} holds answers of another vocabulary ({stored}, this model has {own}): give "
                "this model's own"
            )
        known = Store(origin)  # in memory: the file may be growing
        known.path, known.results = answers, results
        yield from (answer for _, answer in answers_in(known))
    if texts is not None:
        for line in read_text(texts).splitlines(keepends=True):
            yield llm.tokenizer.encode(line, bos=False)


def needed(llm: LLM, vocab_size: int, size: int | None) -> list[int]:
    """Return the tokens that every list has. Raises ConfigError for a size that cannot be."""
    from forerun.drafters.base.draft_head import must_have

    always_listed = must_have(llm.tokenizer, vocab_size)
    if size is not None and size > vocab_size:
        raise ConfigError(
            f"--size {size} is more than the {vocab_size} tokens of the vocabulary: give fewer, or auto"
        )
    if size is not None and size < len(always_listed):
        raise ConfigError(
            f"--size {size} is too few: {len(always_listed)} tokens are bytes or marks, which every list has"
        )
    return always_listed


def measure(
    llm: LLM,
    draft: Model,
    counts: Counts,
    lists: Mapping[int, Ids],
    prompts: Sequence[TaskPrompt],
    *,
    max_tokens: int,
    num_draft: int,
) -> list[Row]:
    """Answer prompts with the whole head and with every list in turn; a row of figures each, the whole head first."""
    from forerun.drafters.draft_model import Options, drafter_of

    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    target = llm.target()
    heads: dict[int | None, Ids | None] = {None: None} | dict(lists)

    def system(size: int | None) -> EngineSystem:
        vocab = "full" if size is None else "auto"
        options = Options(
            model="", num_draft=num_draft, num_steps=num_draft, min_chance=0, draft_vocab=vocab
        )

        def build(tokens: Ids | None) -> Engine:
            return llm.with_drafter(drafter_of(draft, options, target, tokens)).engine

        return EngineSystem(str(size or WHOLE), partial(build, heads[size]), llm.tokenizer, params)

    first_turns = [replace(prompt, turns=prompt.turns[:1]) for prompt in prompts]
    bench = Bench(
        workload.groups(first_turns, 1), [*map(system, heads)], llm.encode, Store({}), ROUNDS
    )
    bench.run("measuring")
    rows = summary.totals(bench.rounds, bench.store.origin, WHOLE)
    figures = []
    for (size, tokens), row in zip(heads.items(), rows.values(), strict=True):
        known = {"size": size, "coverage": coverage(counts, tokens), "tau": row["tau"]}
        known["mbsu"] = mbsu(row["tau"], cost_by_bytes(draft, llm.model, size), num_draft)
        drafted_ms = row["draft_ms"] / max(1, row["drafted"])
        known |= {"tok_s": row["tok_s"], "gain": row["speedup"], "draft_ms": drafted_ms}
        figures.append(known)
    return figures


def fastest(figures: Sequence[Row], out: Path) -> int:
    """Return the size to take. Raises ConfigError if it is the whole head."""
    size: int | None = max(figures, key=lambda each: float(each["gain"]))["size"]
    if size is None:
        show(figures)
        raise ConfigError(
            f"no list is faster than the whole head here, so {out} is not written: --size N writes one"
        )
    return size


def save(llm: LLM, draft: str, out: Path, counts: Counts, tokens: Ids) -> dict[str, object]:
    """Write the folder; return its figures, among them the share of the counted tokens that it covers."""
    from forerun.drafters.base import trimmed

    made = trimmed.TrimmedConfig(
        draft=str(resolve(draft).resolve()),
        target=name_of(llm.path),
        vocabulary=fingerprint(llm.tokenizer),
        vocab_size=len(counts),
        draft_vocab_size=len(tokens),
        num_tokens=int(counts.sum()),
    )
    with writing(out):
        trimmed.save(out, made, tokens)
    return {**asdict(made), "said": coverage(counts, tokens)}


def show(figures: Sequence[Row]) -> None:
    """Print a line a list, the whole head first."""
    columns: dict[str, Column] = {
        "tokens": lambda row: row["size"] or WHOLE,
        "said": ("coverage", ".2%"),
        "tau": ("tau", 3),
        "MBSU": ("mbsu", 3),
        "draft ms": ("draft_ms", 2),
        "tok/s": ("tok_s", 2),
        "against all": lambda row: f"{row['gain']:.3f}x",
    }
    show_table(figures, columns, num_left=0)
