"""A helper process answers the question that was asked, within bounds, and knows little of who asks."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forerun.core.errors import RequestError
from forerun.system.helper_process import NUM_FILES, HelperProcess

PROGRAM = """
import os, resource, signal, time
from forerun.system.helper_process import answer_questions
answer_questions(lambda question: eval(question))
"""


@pytest.fixture
def new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., HelperProcess]]:
    """Starts a process that evaluates what it is asked."""
    (tmp_path / "evaluates.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SECRET_KEY", "1234")
    made: list[HelperProcess] = []

    def new(max_s: float = 5.0) -> HelperProcess:
        made.append(HelperProcess("evaluates", "the sum", max_s, 512 << 20))
        return made[-1]

    yield new
    for one in made:
        one.close()


def test_an_answer_that_was_not_waited_for_is_given_to_nobody(new) -> None:
    """Whatever is raised between the question and its answer."""
    helper = new()
    assert helper.ask("1 + 1") == 2

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        helper.ask("time.sleep(0.3) or 'secret'", interrupt)
    with pytest.raises(RequestError, match=r"the sum ended \("):
        helper.ask("2 + 2")
    assert not helper.is_alive


def test_what_nobody_waits_for_is_given_up_at_once(new) -> None:
    helper, start_s = new(), time.monotonic()
    with pytest.raises(RequestError, match="the request has ended"):
        helper.ask("time.sleep(60)", lambda: time.monotonic() - start_s < 0.3)
    assert time.monotonic() - start_s < 3
    assert not helper.is_alive


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize("question", ["1", "0 or " + " " * 1_000_000 + "1"])
def test_one_that_is_stopped_is_ended(new, question: str) -> None:
    """Also where it does not read the question."""
    helper = new(max_s=0.3)
    assert helper.ask("1") == 1
    os.kill(helper._process.pid, signal.SIGSTOP)
    start_s = time.monotonic()
    with pytest.raises(RequestError, match=r"the sum takes more than 0\.3 s"):
        helper.ask(question)
    assert time.monotonic() - start_s < 3
    assert not helper.is_alive


@pytest.mark.skipif(sys.platform != "linux", reason="its bounds are the system's")
def test_it_knows_little_and_may_do_little(new) -> None:
    helper = new()
    known = {"PATH", "PYTHONPATH", "LANG", "LC_CTYPE", "MALLOC_ARENA_MAX"}
    assert {*helper.ask("dict(os.environ)")} <= known
    bounds = helper.ask(
        "[resource.getrlimit(getattr(resource, 'RLIMIT_' + n))[1] for n in ('FSIZE', 'NOFILE', 'CORE')]"
    )
    assert bounds == [0, NUM_FILES, 0]
    assert helper.ask("os.path.exists('/proc/self/fd/3')") is False


def test_it_ends_with_the_last_who_could_ask(new) -> None:
    helper = HelperProcess("evaluates", "the sum", 5, 512 << 20)
    assert helper.ask("1") == 1
    process = helper._process
    del helper
    assert process.wait(10) is not None


def test_closing_it_ends_who_waits(new) -> None:
    said: list[str] = []

    def ask(helper: HelperProcess) -> None:
        with pytest.raises(RequestError) as error:
            helper.ask("time.sleep(60)")
        said.append(str(error.value))

    with closing(new(max_s=60)) as helper:
        thread = threading.Thread(target=ask, args=(helper,))
        thread.start()
        time.sleep(0.2)
    thread.join(5)
    assert "ended (SIGKILL)" in said[0]
