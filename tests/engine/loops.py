"""What tests of the loop share: its prompts, and looks at what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from forerun.core.types import Event
from forerun.engine.loop import EngineLoop
from tests.engine.harness import LOOPING

PROMPTS = [[*prompt, last] for prompt in LOOPING for last in (3, 9)]
WAIT_S = 60


def tokens(events: list[Event]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def is_idle(loop: EngineLoop) -> bool:
    return not (loop.engine.has_work or loop._requests or loop.engine.scheduler.running)


def failing(loop: EngineLoop, at: int, error: BaseException) -> None:
    """The engine fails in a step, once."""
    verify, count = loop.engine._verify, [0]

    def fail(*arguments):
        count[0] += 1
        if count[0] == at:
            raise error
        return verify(*arguments)

    loop.engine._verify = fail


class Form:
    """A grammar that allows everything, until it is asked too often."""

    def __init__(self, vocab_size: int, left: int) -> None:
        self.vocab_size, self.left = vocab_size, [left]

    def _asked(self, answer):
        self.left[0] -= 1
        if self.left[0] < 0:
            raise ValueError("broken")
        return answer

    def allowed(self):
        return self._asked(np.ones(self.vocab_size, bool))

    def allows(self, token):
        return self._asked(True)

    def advance(self, token):
        return self._asked(self)

    def forced(self):
        return ()
