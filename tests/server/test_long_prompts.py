"""What a stream says while its prompt is read: that it was accepted, that it lives, how far it is."""

from __future__ import annotations

import itertools
import json
import time

import httpx
import pytest

from forerun.core.errors import ConfigError
from forerun.llm import LLM
from forerun.server.config import ServerConfig
from tests.server.conftest import chunks, openai_client, running

BODY = {"max_tokens": 3, "temperature": 0, "stream": True}
CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
OLLAMA, GENERATE = "/api/chat", "/api/generate"
_numbers = itertools.count()


def asking(route: str) -> dict:
    """A body with a prompt of more than 200 tokens, of which the cache holds nothing."""
    text = f"{next(_numbers)}: " + "One two three four five six seven eight nine ten. " * 20
    said = [{"role": "user", "content": text}]
    own = {one: {"messages": said} for one in (CHAT, MESSAGES, OLLAMA)} | {
        RESPONSES: {"input": text}
    }
    return BODY | own.get(route, {"prompt": text})


def is_ping(event: str) -> bool:
    """Whether it says only that the stream lives: an event without text that is not the end."""
    kind, _, data = event.rpartition("data: ")
    if kind.startswith("event: "):
        return "event: ping" in kind or "event: response.in_progress" in kind
    said = {} if data == "[DONE]" else json.loads(data)
    said = said.get("choices", [said])[0]
    rest = (said.get("delta"), said.get("text"), said.get("content"), said.get("response"))
    message = said.get("message", {}).get("content")
    is_end = said.get("finish_reason") or said.get("stop") or said.get("done")
    return bool(said) and not is_end and not any(rest) and not message


@pytest.fixture(scope="module")
def slow(default_model) -> LLM:
    """Reads 16 tokens in a pass, one prompt at a time, and none of them twice."""
    sizes = {"max_model_len": 768, "max_num_seqs": 1, "prefill_chunk": 16}
    return LLM(str(default_model), drafter="none", **sizes)


@pytest.fixture(scope="module")
def held(slow):
    """A server whose engine waits before each pass for as long as a test wants."""
    step, pause = slow.engine.step, [0.0]

    def slowed():
        time.sleep(pause[0])
        return step()

    slow.engine.step = slowed
    with running(lambda: slow, sse_ping_interval=0.1) as (url, _):
        yield url, pause
    del slow.engine.step


def events(url: str, route: str, body: dict) -> list[tuple[float, str]]:
    """What a stream sends, an event or a comment each, and when."""
    found, rest = [], ""
    start_s = time.monotonic()
    with httpx.stream("POST", url + route, json=body, timeout=60) as answer:
        assert answer.status_code == 200
        for part in answer.iter_text():
            *whole, rest = (rest + part).split("\n" if route.startswith("/api") else "\n\n")
            found += [(time.monotonic() - start_s, one) for one in whole]
    return found


@pytest.mark.parametrize(
    ("route", "first", "ping"),
    [
        (CHAT, '"role":"assistant"', '"delta":{}'),
        (MESSAGES, "event: message_start", 'event: ping\ndata: {"type":"ping"}'),
        (RESPONSES, "event: response.created", "event: response.in_progress"),
        (TEXT, '"text":""', '"text":""'),
        (NATIVE, '"content":""', '"content":""'),
        (OLLAMA, '"content":""', '"content":""'),
        (GENERATE, '"response":""', '"response":""'),
    ],
)
def test_a_stream_begins_when_it_is_accepted_and_is_never_long_silent(held, route, first, ping):
    """Comments would be fewer bytes, but the timers of Codex and others count events."""
    url, pause = held
    pause[0] = 0.04
    found = events(url, route, asking(route))
    pause[0] = 0.0
    assert first in found[0][1]
    times = [0.0, *(time_s for time_s, _ in found)]
    pings = [one for _, one in found if is_ping(one)]
    assert times[-1] > 0.4
    assert len(pings) >= 3
    assert all(ping in one for one in pings)
    assert all(later - before < 1 for before, later in itertools.pairwise(times))
    assert len(found) - len(pings) >= 3
    assert not [one for _, one in found if one.startswith(":")]


@pytest.mark.parametrize("interval_s", [0.8, 0, -1])
def test_a_stream_that_has_something_to_say_or_may_not_sends_no_pings(slow, held, interval_s):
    _, pause = held
    body = BODY | {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}
    pause[0] = 0.02
    with running(lambda: slow, sse_ping_interval=interval_s) as (url, _):
        found = [one for _, one in events(url, CHAT, body | {"max_tokens": 40})]
    pause[0] = 0.0
    assert len(found) > 10
    assert not [one for one in found if is_ping(one)]


def test_openais_client_reads_a_stream_with_pings(held):
    url, pause = held
    pause[0] = 0.02
    with openai_client(url) as client:
        parts = [*client.chat.completions.create(model="tiny", **asking(CHAT))]
    pause[0] = 0.0
    assert [part.choices[0].delta.role for part in parts] == ["assistant"] + [None] * (
        len(parts) - 1
    )
    assert not parts[0].choices[0].delta.content
    assert "".join(part.choices[0].delta.content or "" for part in parts)


@pytest.mark.parametrize("route", [CHAT, TEXT, NATIVE])
def test_progress_of_a_prompt_is_what_the_cache_holds(held, route):
    url, _ = held
    body = asking(route) | {"return_progress": True}
    for is_again in (False, True):
        found = chunks(url, route, body)
        told = [one["prompt_progress"] for one in found if "prompt_progress" in one]
        last = told[-1]
        assert told[0]["processed"] == told[0]["cache"]
        assert told[0]["time_ms"] == 0
        assert last["processed"] == last["total"] > 200
        assert {one["total"] for one in told} == {last["total"]}
        read = [one["processed"] for one in told]
        assert all(0 < later - before <= 16 for before, later in itertools.pairwise(read))
        times = [one["time_ms"] for one in told]
        assert times == sorted(times)
        numbers = [number for number, one in enumerate(found) if "prompt_progress" in one]
        begins = int(route == CHAT)
        assert numbers == [*range(begins, begins + len(told))], "before the answer"
        assert is_again <= (told[0]["cache"] > 0)
    plain = chunks(url, route, body | {"return_progress": False})
    assert not [one for one in plain if "prompt_progress" in one]
    assert text_of(plain) == text_of(found)


def text_of(found: list[dict]) -> str:
    choices = [one["choices"][0] if "choices" in one else one for one in found]
    return "".join(
        one.get("text") or one.get("content") or one.get("delta", {}).get("content") or ""
        for one in choices
    )


def test_each_prompt_of_several_tells_its_own_progress(held):
    url, _ = held
    prompts = [asking(TEXT)["prompt"], asking(TEXT)["prompt"]]
    found = chunks(url, TEXT, BODY | {"prompt": prompts, "n": 2, "return_progress": True})
    told = [one for one in found if "prompt_progress" in one]
    assert {one["choices"][0]["index"] for one in told} == {0, 2}


@pytest.mark.parametrize("given", [-2.0, -0.5, float("nan")])
def test_a_ping_interval_below_zero_is_refused_but_for_never(given):
    ServerConfig(sse_ping_interval=-1)
    ServerConfig(sse_ping_interval=0)
    with pytest.raises(ConfigError, match="sse_ping_interval"):
        ServerConfig(sse_ping_interval=given)
