"""A model's chat template may be any program: beyond its limits a chat is 400, and all else goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server.conftest import apart, chunks, post, running, status_mb
from tests.server.test_reasoning import with_template
from tests.text.test_template_process import LOOP, OUTPUT, RECURSION, children, wait_until_ended

EVIL = (
    "{% set said = messages[0].content %}"
    "{% if said == 'loop' %}" + LOOP + "{% endif %}"
    "{% if said == 'memory' %}{% set x = said * 3000000000 %}{% endif %}"
    "{% if said == 'output' %}" + OUTPUT + "{% endif %}"
    "{% if said == 'recursion' %}" + RECURSION + "{% endif %}{{ said }}"
)
ROUTES = {
    "/v1/chat/completions": {"max_tokens": 4},
    "/v1/chat/completions/input_tokens": {},
    "/v1/messages": {"max_tokens": 4},
    "/v1/messages/count_tokens": {},
    "/apply-template": {},
    "/tokenize": {},
}
TEXT = {"prompt": "One two three", "temperature": 0}


def chat(said: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": said}]}


@pytest.fixture(scope="module")
def evil(llm) -> Iterator[str]:
    with running(lambda: with_template(llm, EVIL)) as (url, _):
        yield url


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("memory", "takes more than 512 MiB of memory"),
        ("output", "writes more than 32 MiB"),
        ("recursion", "maximum recursion depth"),
    ],
)
def test_beyond_a_limit_it_is_400_on_every_route_that_renders(evil, said, words):
    for route, more in ROUTES.items():
        error = post(evil, route, chat(said) | more, 400)["error"]
        assert words in error["message"]
    assert post(evil, "/apply-template", chat("fine"))["prompt"] == "fine"


def test_a_template_that_cannot_be_compiled_is_400(llm):
    with running(lambda: with_template(llm, "{% set x = 'a' * 3000000000 %}")) as (url, _):
        error = post(url, "/apply-template", chat("a"), 400)["error"]
        assert "512 MiB" in error["message"]
        assert post(url, "/v1/completions", TEXT | {"max_tokens": 2})["choices"]


def test_its_processes_end_with_the_server(llm):
    others = children(os.getpid())
    with running(lambda: with_template(llm, EVIL)) as (url, _):
        assert not children(os.getpid()) - others  # none before the first chat
        post(url, "/apply-template", chat("fine"))
        own = children(os.getpid()) - others
        assert own
    for child in own:
        wait_until_ended(child)


@pytest.mark.slow
def test_loops_that_never_end_are_400_and_all_else_goes_on(llm, default_model, tmp_path):
    template = tmp_path / "evil.jinja"
    template.write_text(EVIL)
    flags = ("--chat-template", str(template), "--max-model-len", "512", "--max-num-seqs", "4")
    expected = llm.generate(TEXT["prompt"])[0].outputs[0].text
    with apart(default_model, *flags) as (server, url, _), ThreadPoolExecutor(8) as threads:
        before = status_mb(server)
        loops = [threads.submit(post, url, "/apply-template", chat("loop"), 400) for _ in range(6)]
        time.sleep(0.5)
        while not all(loop.done() for loop in loops):
            start_s = time.monotonic()
            found = post(url, "/v1/completions", TEXT | {"max_tokens": 16})
            assert found["choices"][0]["text"] == expected
            text = chunks(url, "/v1/completions", TEXT | {"max_tokens": 16})
            assert "".join(one["choices"][0]["text"] for one in text if one["choices"]) == expected
            assert time.monotonic() - start_s < 3
        for loop in loops:
            assert "takes more than 5 s" in loop.result()["error"]["message"]
        assert post(url, "/apply-template", chat("fine"))["prompt"] == "fine"
        with httpx.Client(timeout=60) as client:
            for said in ("memory", "output"):
                assert client.post(f"{url}/apply-template", json=chat(said)).status_code == 400
        assert status_mb(server, "VmHWM") - before < 150
        assert children(server.pid)
        left = children(server.pid)
        threads.submit(httpx.post, f"{url}/apply-template", json=chat("loop"), timeout=60)
        time.sleep(0.5)
        left |= children(server.pid)
        server.kill()
        server.wait()
        for child in left:
            wait_until_ended(child)
    assert not any(Path(f"/proc/{child}/exe").exists() for child in left)
