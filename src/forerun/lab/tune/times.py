"""What a network would take to read and to learn, measured before the hours that it takes are spent."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from forerun.lab.train import session
from forerun.lab.train.replies import Reply
from forerun.lab.train.session import Data
from forerun.lab.train.trainer import TrainSettings
from forerun.lab.tune.training import STATES_GB, Beginning, NetworkRun
from forerun.llm import LLM

PROBE_TEXTS, PROBE_TOKENS = 4, 132
"""Texts and their tokens: two steps of learning."""


def needed(llm: LLM, run: NetworkRun) -> str:
    """Say what a training run takes: its weights, and the time of reading and of learning."""
    begin = Beginning.of(llm, run.data.ids)
    read_rate, learn_rate = _rates(llm, begin)
    read = session.state_reader(llm, run.data.path, STATES_GB)
    to_read = sum(len(reply.tokens) for reply in run.data.train if not read.is_kept(reply))
    reading = f"{span(to_read / read_rate)} to read {to_read} tokens and " if to_read else ""
    return (
        f"a network of {begin.num_weights / 1e6:.1f} M weights takes about {reading}"
        f"{span(run.settings.tokens / learn_rate)} to learn"
    )


def span(seconds: float) -> str:
    """Return a time as people say it.

    >>> span(20), span(600), span(9000)
    ('1 minute', '10 minutes', '2.5 hours')
    """
    minutes = max(1, round(seconds / 60))
    if minutes > 100:
        return f"{seconds / 3600:.1f} hours"
    return f"{minutes} minute{'s' * (minutes > 1)}"


def _rates(llm: LLM, begin: Beginning) -> tuple[float, float]:
    """Time some passes over texts of no sense, and a step of learning from them: tokens a second of both."""
    length, vocab = min(llm.max_len, PROBE_TOKENS), llm.model.config.vocab_size
    texts = [
        Reply(f"{i}/0", "", tuple((7 * j + i) % vocab for j in range(length)), 1)
        for i in range(PROBE_TEXTS)
    ]
    settings = TrainSettings(tokens=10 * PROBE_TEXTS * PROBE_TOKENS, bf16=session.has_bf16())
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
