"""What a network beside the table would take and bring, said before the hours that it takes are spent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from forerun.core.costs import CostCurve
from forerun.core.types import TaskPrompt
from forerun.lab.train import answers, session
from forerun.lab.train.replies import Reply
from forerun.lab.train.session import Data
from forerun.lab.train.trainer import TrainSettings
from forerun.lab.tune.network import EPOCHS, STATES_GB, Beginning
from forerun.lab.tune.search import DrafterFigures
from forerun.llm import LLM

STEPS, STEP_BITS = 2, 4
"""Steps of a network in a pass beside a table, about, and bits of its weights."""
NO_GAIN_TOKENS, DOUBLING_GAIN, GOING_ON_GAIN = 100_000, 0.04, 1.02
"""Tokens a pass of a network and a table over the table's, by the tokens of replies that the network learned.

As of those that ship (docs/training.md): with 100k a network knows what the table knows, a doubling brings it .12 of
tau alone and a third of that beside a table; one that was trained before gains little from more replies.
"""
PAYS = 1.05
"""The expected gain from which a network is made."""
MOST_TOKENS = 10_000_000
PROBE_TEXTS, PROBE_TOKENS, PROBE_BATCH = 4, 132, 512
"""Of the two steps that are timed."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a network would take and bring, before anything is made."""

    tokens: int
    """Of answers that it would learn."""
    missing: int
    """Of these, not made yet."""
    weights: int
    answer_s: float
    read_s: float
    learn_s: float
    gain: float
    """Tokens a pass, with it over without it."""
    cost: float
    """Of a step, with it over without it."""
    speedup: float
    """Of both together, over the default drafter or, where that is slower, plain decoding."""
    pays_from: int | None
    """Tokens of answers from which it would pay; None: at no number."""

    @property
    def pays(self) -> bool:
        """Whether it is expected to be worth its making."""
        return self.speedup >= PAYS

    def lines(self, is_made: bool | None) -> tuple[str, str]:
        """Say what it takes, what it brings, and whether it is made; None: if it pays."""
        makes = f", {self.missing} of them to be made in about {span(self.answer_s)}"
        takes = (
            f"{self.tokens} tokens of answers{makes if self.missing else ''}; a network of {self.weights / 1e6:.1f} M "
            f"weights takes about {span(self.read_s)} to read them and {span(self.learn_s)} to learn"
        )
        brings = (
            f"expected of it: {self.gain:.2f} times the tokens a pass at {self.cost:.2f} times the cost, "
            f"{self.speedup:.2f}x; "
        )
        if is_made:
            return takes, brings + "it is made, as --network says"
        if self.pays:
            return takes, brings + "it is made after the table (--no-network leaves it out)"
        enough = "more answers are not expected to change that"
        if self.pays_from is not None:
            enough = f"from --tokens {self.pays_from // 1000}k on it would be"
        return takes, f"{brings}none is made, from {PAYS}x on it pays: {enough}; --network makes it"


def estimate(
    llm: LLM,
    begin: Beginning,
    prompts: Sequence[TaskPrompt],
    num_tokens: int,
    before: DrafterFigures,
    plain_ms: float,
    costs: CostCurve,
) -> Estimate:
    """Time what reading and learning take, and say what a network of so many tokens of answers would bring.

    `before` is of the default drafter, drafting in full; `plain_ms` that of a pass of one row, `costs` of wider ones.
    """
    made = sum(len(answer) for _, answer in answers.answers_in(answers.store_of(llm)))
    tokens = max(num_tokens, made)
    read_rate, learn_rate = _rates(llm, begin)
    of_prompts = fmean(len(llm.tokenizer.encode(p.turns[0])) for p in prompts) / answers.MAX_TOKENS
    width = llm.config.max_num_seqs
    answer_s = plain_ms / 1e3 * costs.v(width) / width + of_prompts / read_rate
    # One that was trained before drafts already, by default.
    added = 0.0 if begin.path else STEPS * _step_nbytes(begin) / llm.model.nbytes()
    cost, worth = worth_of(before, added)
    gain = GOING_ON_GAIN if begin.path else gain_of(tokens)
    needed = tokens_for(PAYS / worth)
    return Estimate(
        tokens,
        tokens - made,
        begin.num_weights,
        answer_s=(tokens - made) * answer_s,
        read_s=tokens * (1 + of_prompts) / read_rate,
        learn_s=tokens * EPOCHS / learn_rate,
        gain=gain,
        cost=cost,
        speedup=worth * gain,
        pays_from=None if begin.path or needed > MOST_TOKENS else needed,
    )


def worth_of(before: DrafterFigures, draft_cost: float) -> tuple[float, float]:
    """Return what a step costs with a network over without, and its speed over the default's if it guessed no better.

    `before` is of the default drafter; `draft_cost` the network's of a step, in plain passes.
    """
    step_cost = (before.pass_cost + before.draft_cost) / max(before.passes, 1) or 1.0
    cost, speedup = 1 + draft_cost / step_cost, before.tau / step_cost
    # Where drafts are slower than plain decoding, none are made.
    return cost, min(speedup, 1.0) / cost


def gain_of(tokens: int) -> float:
    """Return the tokens a pass of a new network and a table over the table's.

    >>> round(gain_of(400_000), 2), gain_of(20_000)
    (1.08, 1.0)
    """
    return 1 + DOUBLING_GAIN * max(0.0, log2(tokens / NO_GAIN_TOKENS))


def tokens_for(gain: float) -> int:
    """Return the tokens of replies that bring a gain, two digits of them."""
    tokens = NO_GAIN_TOKENS * 2 ** min(max(0.0, (gain - 1) / DOUBLING_GAIN), 64)
    return int(float(f"{tokens:.1e}"))


def span(seconds: float) -> str:
    """Return a time as people say it.

    >>> span(20), span(600), span(9000)
    ('1 minute', '10 minutes', '2.5 hours')
    """
    minutes = max(1, round(seconds / 60))
    if minutes > 100:
        return f"{seconds / 3600:.1f} hours"
    return f"{minutes} minute{'s' * (minutes > 1)}"


def _step_nbytes(begin: Beginning) -> float:
    """Bytes that a step of the network reads: its weights as they are packed, and its rows of the target's head."""
    return begin.num_weights * STEP_BITS / 8 + len(begin.ids) * begin.learner.shape.inner_dim


def _rates(llm: LLM, begin: Beginning) -> tuple[float, float]:
    """Time some passes over texts of no sense, and a step of learning from them: tokens a second of both."""
    length, vocab = min(llm.max_len, PROBE_TOKENS), llm.model.config.vocab_size
    texts = [
        Reply(f"{i}/0", "", tuple((7 * j + i) % vocab for j in range(length)), 1)
        for i in range(PROBE_TEXTS)
    ]
    settings = TrainSettings(tokens=MOST_TOKENS, batch=PROBE_BATCH, bf16=session.has_bf16())
    with TemporaryDirectory() as folder:
        out = Path(folder)
        data = Data("", "", out / "answers", [], texts, texts, begin.ids)
        trainer = session.new_trainer(llm, begin.learner, data, settings, STATES_GB, out, {})
        start = time.perf_counter()
        for text in texts:
            trainer.read(text)
        read_s = time.perf_counter() - start
        steps = trainer.run([], texts, texts)
        if begin.learner.is_trained:
            next(steps)  # it is measured first
        known = next(steps).tokens  # which also warms up
        start = time.perf_counter()
        learned = next(steps).tokens - known
        learn_s = time.perf_counter() - start
    return PROBE_TEXTS * length / read_s, learned / learn_s
