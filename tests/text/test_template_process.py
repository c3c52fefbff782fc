"""A template in a process writes what it writes here, and ends beyond a limit; the next conversation is rendered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from forerun.core.errors import RequestError
from forerun.text.chat_template import RESERVED, ChatTemplate
from forerun.text.template_process import TemplateProcess
from tests.server.test_reasoning import MISTRAL, THINKS
from tests.text.test_chat_template import FAILING, MESSAGES, TEMPLATES

TOKENS = ("<s>", "</s>")
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TALK = [
    *MESSAGES,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": [{"type": "text", "text": "2 \u4e2d \U0001f600"}]},
]
SOME = {
    **TEMPLATES,
    "thinks": THINKS,
    "mistral": MISTRAL,
    "mood": "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ mood }}",
    "calls": "{{ messages | tojson }}{{ tools | tojson }}{{ x }}",
}
LOOP = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
RECURSION = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"
OUTPUT = "{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}"
BEYOND = {
    "a loop": (LOOP, "more than 0.5 s"),
    "one operation": (
        "{% set x = messages | length %}{{ (x + 7) ** 99999999 }}",
        "more than 0.5 s",
    ),
    "a constant": ("{% set x = 'a' * 3000000000 %}", "more than 512 MiB"),
    "memory": ("{% set x = messages[0].role * 3000000000 %}", "more than 512 MiB"),
    "output": (OUTPUT, "more than 32 MiB"),
    "recursion": (RECURSION, "cannot take these messages: maximum recursion depth"),
    "depth": ("{% if a %}" * 2000 + "{% endif %}" * 2000, "not valid"),
    "blocks": ("{% for a in b %}" * 30 + "{% endfor %}" * 30, "not valid"),
}
"""Templates beyond each limit. The tests' own limit of time is short."""


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, TemplateProcess]]:
    found = {name: TemplateProcess(source, *TOKENS) for name, source in SOME.items()}
    yield found
    for one in found.values():
        one.close()


def outcome(template: ChatTemplate | TemplateProcess, *given: object) -> str:
    try:
        return template.render(*given)  # type: ignore[arg-type]
    except RequestError as error:
        return f"RequestError: {error}"


@pytest.mark.parametrize("name", SOME)
def test_it_writes_what_the_template_writes_here(made, name: str) -> None:
    here, there = ChatTemplate(SOME[name], *TOKENS), made[name]
    assert there.reads_tools == here.reads_tools
    for messages in (MESSAGES, TALK, [], [{"role": "user"}], [{"role": "a", "content": "\ud800"}]):
        for tools in (None, TOOLS):
            for variables in ({}, {"mood": "!"}, {"x": [1, 1.5, None]}, {"self": 1}):
                given = (messages, True, tools, variables)
                assert outcome(there, *given) == outcome(here, *given)


def test_its_errors_are_those_of_the_template() -> None:
    for source, reason in FAILING:
        with closing(TemplateProcess(source, *TOKENS)) as there:
            with pytest.raises(RequestError, match=reason) as found:
                there.render(MESSAGES, True)
            with pytest.raises(RequestError) as expected:
                ChatTemplate(source, *TOKENS).render(MESSAGES, True)
            assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("name", BEYOND)
def test_beyond_a_limit_it_is_an_error_and_the_next_one_is_rendered(name: str) -> None:
    source, reason = BEYOND[name]
    template = (
        "{% if messages[0].content == 'a' %}"
        + source
        + "{% else %}{{ messages[0].content }}{% endif %}"
    )
    if name in ("a constant", "depth", "blocks"):  # found when it is compiled
        template = source
    start_s = time.monotonic()
    with closing(TemplateProcess(template, *TOKENS, max_s=0.5)) as there:
        with pytest.raises(RequestError, match=reason):
            there.render([{"role": "user", "content": "a"}], True)
        if template != source:
            assert there.render([{"role": "user", "content": "fine"}], True) == "fine"
    assert time.monotonic() - start_s < 20


def test_others_are_rendered_while_one_takes_its_time() -> None:
    template = "{% if messages[0].role == 'u' %}" + LOOP + "{% endif %}fine"
    with closing(TemplateProcess(template, *TOKENS, max_s=1)) as there:
        slow = threading.Thread(target=outcome, args=(there, [{"role": "u", "content": "a"}], True))
        slow.start()
        for _ in range(20):
            assert there.render(MESSAGES, True) == "fine"
        assert slow.is_alive()
        slow.join()


def test_one_that_was_killed_is_replaced() -> None:
    others = children(os.getpid())
    with closing(TemplateProcess("{{ messages[0].role }}", *TOKENS)) as there:
        assert there.render(MESSAGES, True) == "system"
        (child,) = children(os.getpid()) - others
        os.kill(child, signal.SIGKILL)
        wait_until_ended(child)
        assert there.render(MESSAGES, True) == "system"


def test_closing_ends_what_is_rendered() -> None:
    others = children(os.getpid())
    there = TemplateProcess(LOOP, *TOKENS, max_s=60)
    slow = threading.Thread(target=outcome, args=(there, MESSAGES, True))
    slow.start()
    while not children(os.getpid()) - others:
        time.sleep(0.01)
    (child,) = children(os.getpid()) - others
    there.close()
    slow.join(10)
    assert not slow.is_alive()
    wait_until_ended(child)
    with pytest.raises(RequestError, match="closed"):
        there.render(MESSAGES, True)


@pytest.mark.parametrize("source", ["{{ messages }}", LOOP], ids=["idle", "running"])
def test_it_ends_with_who_started_it(source: str) -> None:
    program = (
        "import os, threading, time\n"
        "from forerun.text.template_process import TemplateProcess\n"
        f"one = TemplateProcess({source!r}, '', '', max_s=0.5)\n"
        "one.reads_tools\n"
        "threading.Thread(target=one.render, args=([{'role': 'u', 'content': ''}], True)).start()\n"
        "time.sleep(.1)\n"
        "print('there', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"there\n"
        (child,) = children(parent.pid)
        parent.kill()
        parent.wait()
        wait_until_ended(child)


def test_it_imports_little() -> None:
    program = "import forerun.text.template_process, sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    names = {name.partition(".")[0] for name in found.stdout.decode().split()}
    assert not names & {"numpy", "torch", "tokenizers", "pydantic", "fastapi"}


def test_names_of_the_renderer_are_refused_there(made) -> None:
    for name in RESERVED:
        with pytest.raises(RequestError, match=f"not '{name}'"):
            made["mood"].render(MESSAGES, True, None, {name: "x"})


def children(pid: int) -> set[int]:
    """The template processes that a process started."""
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True)
    rows = [line.split(None, 1) for line in found.stdout.decode().splitlines()]
    return {int(number) for number, command in rows if "template_process" in command}


def wait_until_ended(pid: int) -> None:
    end_s = time.monotonic() + 10
    while state_of(pid) not in ("", "Z"):
        assert time.monotonic() < end_s, f"{pid} runs"
        time.sleep(0.02)


def state_of(pid: int) -> str:
    found = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True)
    return found.stdout.decode().strip()
