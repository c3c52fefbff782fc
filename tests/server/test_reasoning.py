"""What a model thinks and calls, in the forms of its family and of four APIs; a grammar makes it write them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.conftest import chunks, post, running

THINKS = (
    "{{ messages[-1].content }}{% if tools %}<tool_call>{% endif %}{% if open %}<think>{% endif %}"
)
MISTRAL = "{{ messages[-1].content }}{% if tools %}[TOOL_CALLS]{% endif %}"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "user", "content": "Hi"}]
FORM = {"regex": "<think>[a-z]{4,9}</think>[A-Z]{4,9}"}
BODY = {"messages": MESSAGES, "structured_outputs": FORM, "temperature": 0, "max_tokens": 64}


def events(url: str, route: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What is streamed with names of events beside the data."""
    text = httpx.post(f"{url}{route}", json=body | {"stream": True}, timeout=60).text
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def with_template(llm, template):  # type: ignore[no-untyped-def]
    own = copy.copy(llm)
    own.tokenizer = copy.copy(llm.tokenizer)
    own.tokenizer.use_chat_template(template)
    return own


@pytest.fixture(scope="module")
def thinking(llm) -> Iterator[str]:  # type: ignore[no-untyped-def]
    with running(lambda: with_template(llm, THINKS)) as (url, _):
        yield url


def test_what_is_thought_is_apart_from_what_is_said(thinking: str) -> None:
    message = post(thinking, "/v1/chat/completions", BODY)["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"]
    assert message["reasoning_content"].islower()
    assert message["content"].isupper()
    whole = post(thinking, "/v1/chat/completions", BODY | {"reasoning_format": "none"})
    said = whole["choices"][0]["message"]
    assert said["content"] == f"<think>{message['reasoning_content']}</think>{message['content']}"
    assert "reasoning_content" not in said


def test_a_stream_says_the_same(thinking: str) -> None:
    message = post(thinking, "/v1/chat/completions", BODY)["choices"][0]["message"]
    deltas = [
        one["choices"][0]["delta"]
        for one in chunks(thinking, "/v1/chat/completions", BODY)
        if one["choices"]
    ]
    for name in ("reasoning_content", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]
    names = [
        name for delta in deltas for name in ("reasoning_content", "content") if delta.get(name)
    ]
    assert names == sorted(names, reverse=True)  # first all thoughts


def test_a_thought_may_begin_in_the_prompt(thinking: str) -> None:
    form = {"regex": "[a-z]{4,9}</think>[A-Z]{4,9}"}
    body = BODY | {"structured_outputs": form, "chat_template_kwargs": {"open": True}}
    message = post(thinking, "/v1/chat/completions", body)["choices"][0]["message"]
    assert message["reasoning_content"].islower()
    assert message["content"].isupper()


def test_responses_and_messages_have_blocks_of_thoughts(thinking: str) -> None:
    form = {"structured_outputs": FORM, "temperature": 0}
    found = post(thinking, "/v1/responses", {"input": "Hi", "max_output_tokens": 64, **form})
    thought, said = found["output"]
    assert (thought["type"], said["type"]) == ("reasoning", "message")
    assert thought["content"][0]["text"].islower()
    assert said["content"][0]["text"].isupper()
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    body = {"input": "Hi", "max_output_tokens": 64, **form}
    found = events(thinking, "/v1/responses", body)
    text = "".join(e["delta"] for e in found if e["type"] == "response.reasoning_text.delta")
    assert text == thought["content"][0]["text"]

    body = {"messages": MESSAGES, "max_tokens": 64, **form}
    blocks = post(thinking, "/v1/messages", body)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert blocks[0]["thinking"] == text
    deltas = [e["delta"] for e in events(thinking, "/v1/messages", body) if "delta" in e]
    assert "".join(d["thinking"] for d in deltas if d.get("type") == "thinking_delta") == text


def test_calls_have_the_familys_form(llm) -> None:  # type: ignore[no-untyped-def]
    form = {"regex": r'\[TOOL_CALLS\]add\[ARGS\]\{"a": [0-9]\}'}
    body = BODY | {"structured_outputs": form}
    with running(lambda: with_template(llm, MISTRAL)) as (url, _):
        plain = post(url, "/v1/chat/completions", body)["choices"][0]
        assert plain["message"]["content"].startswith("[TOOL_CALLS]add")
        # A form and tools cannot both be given, so the call is drawn by a tool that must be called.
        forced = BODY | {"tools": [TOOL], "tool_choice": "required"}
        del forced["structured_outputs"]
        choice = post(url, "/v1/chat/completions", forced)["choices"][0]
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "add"
