"""What a model thinks and calls, in the forms of its family and of four APIs; a grammar makes it write them."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from forerun.server.api.anthropic import MessagesRequest
from forerun.server.api.responses import ResponsesRequest
from tests.server.conftest import chunks, post, running

THINKS = (
    "{{ messages[-1].content }}{% if tools %}<tool_call>{% endif %}{% if open %}<think>{% endif %}"
)
MISTRAL = "{{ messages[-1].content }}{% if tools %}[TOOL_CALLS]{% endif %}"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "user", "content": "Hi"}]
FORM = {"regex": "<think>[a-z]{4,9}</think>[A-Z]{4,9}"}
BODY = {"messages": MESSAGES, "structured_outputs": FORM, "temperature": 0, "max_tokens": 64}


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
    """The form is that of what comes behind it, and a thought takes half of the tokens at most."""
    form = {"structured_outputs": {"regex": "[A-Z]{4,9}"}}
    told = {"response_format": {"type": "json_object"}, "structured_outputs": None}
    for asked in (form, told):
        body = BODY | asked | {"chat_template_kwargs": {"open": True}}
        message = post(thinking, "/v1/chat/completions", body)["choices"][0]["message"]
        assert message["reasoning_content"]
        assert message["content"].isupper() or message["content"][0] == "{"
        whole = post(thinking, "/v1/chat/completions", body | {"reasoning_format": "none"})
        assert "<think>" not in whole["choices"][0]["message"]["content"]


@pytest.mark.parametrize("more", [{"ignore_eos": True}, {"min_tokens": 4}])
def test_a_bound_thought_goes_with_what_rules_no_form(thinking: str, more: dict) -> None:
    """Load generators send both; what follows the thought has no form that says where it ends."""
    asked = {"thinking_budget": 5, "enable_thinking": True, "chat_template_kwargs": {"open": True}}
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 24, **asked, **more}
    found = post(thinking, "/v1/chat/completions", body)
    assert found["choices"][0]["message"]["reasoning_content"]


def test_calls_that_are_required_come_behind_a_thought(thinking: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    add = {"type": "function", "function": {"name": "add", "parameters": schema}}
    given = {"tools": [add], "tool_choice": "required", "chat_template_kwargs": {"open": True}}
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 90, **given}
    message = post(thinking, "/v1/chat/completions", body)["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["tool_calls"][0]["function"]["name"] == "add"


def test_responses_and_messages_have_blocks_of_thoughts(thinking: str) -> None:
    form = {"structured_outputs": FORM, "temperature": 0}
    found = post(thinking, "/v1/responses", {"input": "Hi", "max_output_tokens": 64, **form})
    thought, said = found["output"]
    assert (thought["type"], said["type"]) == ("reasoning", "message")
    assert thought["content"][0]["text"].islower()
    assert said["content"][0]["text"].isupper()
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    body = {"input": "Hi", "max_output_tokens": 64, **form}
    found = chunks(thinking, "/v1/responses", body)
    text = "".join(e["delta"] for e in found if e["type"] == "response.reasoning_text.delta")
    assert text == thought["content"][0]["text"]

    body = {"messages": MESSAGES, "max_tokens": 64, **form}
    blocks = post(thinking, "/v1/messages", body)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert blocks[0]["thinking"] == text
    deltas = [e["delta"] for e in chunks(thinking, "/v1/messages", body) if "delta" in e]
    assert "".join(d["thinking"] for d in deltas if d.get("type") == "thinking_delta") == text


ADDED = {"name": "add", "arguments": {"a": 1}}
CALL = {"id": "c1", "type": "function", "function": ADDED}
CONVERSATION = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello", "reasoning_content": "greet\nkindly"},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "", "reasoning_content": "call", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "Thanks"},
]
BLOCKS = [
    CONVERSATION[0],
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "greet\nkindly", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "Hello"},
        ],
    },
    CONVERSATION[2],
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "call"},
            {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
    *CONVERSATION[5:],
]
ITEMS = [
    CONVERSATION[0],
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "short"}],
        "content": [{"text": text} for text in ("greet", "kindly")],
    },
    {"role": "assistant", "content": "Hello"},
    CONVERSATION[2],
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "call"}]},
    {"type": "function_call", "call_id": "c1", **ADDED},
    {"type": "function_call_output", "call_id": "c1", "output": "2"},
    {"type": "reasoning", "summary": [], "encrypted_content": "x"},
    *CONVERSATION[5:],
]


def test_thoughts_of_earlier_answers_reach_the_template_from_every_api() -> None:
    messages = MessagesRequest.model_validate({"messages": BLOCKS, "max_tokens": 1})
    responses = ResponsesRequest.model_validate({"input": ITEMS})
    expected = [{**message, "content": message["content"] or None} for message in CONVERSATION]
    for found in (messages.as_chat()["messages"], responses.as_chat()["messages"]):
        found = [{**message, "content": message["content"] or None} for message in found]
        assert found == expected


def test_a_thought_without_an_answer_is_nobodys() -> None:
    items = [ITEMS[4], {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    found = ResponsesRequest.model_validate({"input": items}).as_chat()["messages"]
    assert found == items[1:]


def test_what_was_thought_is_read_again(llm) -> None:  # type: ignore[no-untyped-def]
    template = "{% for m in messages %}{{ m.reasoning_content or '' }}{{ m.content }}{% endfor %}"
    with running(lambda: with_template(llm, template)) as (url, _):
        sizes = [
            post(url, "/v1/messages/count_tokens", {"messages": messages})["input_tokens"]
            for messages in (BLOCKS[:3], CONVERSATION[:3])
        ]
        plain = [{"role": "user", "content": "Higreet\nkindlyHello1 + 1?"}]
        whole = post(url, "/v1/messages/count_tokens", {"messages": plain})["input_tokens"]
    assert sizes[0] == whole > sizes[1]


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


@pytest.mark.parametrize("open", [True, False])
def test_stop_strings_end_the_answer_not_the_thought(thinking: str, open: bool) -> None:
    mark = "" if open else "<think>"
    form = {"regex": f"{mark}[a-z]{{4}}Q:\n\n[a-z]{{4}}</think>\n\n[A-Z]{{4}}Q:[A-Z]{{4}}"}
    if open:
        form = {"regex": "[A-Z]{4}Q:[A-Z]{4}"}
    body = BODY | {"structured_outputs": form, "chat_template_kwargs": {"open": open}}
    for stop in (["Q:"], ["Q:", "\n\n", "a", "e"]):
        choice = post(thinking, "/v1/chat/completions", body | {"stop": stop})["choices"][0]
        assert len(choice["message"]["content"]) == 4
        assert choice["message"]["reasoning_content"]
        assert choice["stop_reason"] == "Q:"
        deltas = [
            one["choices"][0]["delta"]
            for one in chunks(thinking, "/v1/chat/completions", body | {"stop": stop})
        ]
        said = "".join(one.get("content") or "" for one in deltas)
        assert said == choice["message"]["content"]
    if not open:
        whole = post(
            thinking, "/v1/chat/completions", body | {"stop": ["Q:"], "reasoning_format": "none"}
        )
        assert len(whole["choices"][0]["message"]["content"].removeprefix("<think>")) == 4


def test_thoughts_of_messages_are_signed_and_come_back(thinking: str) -> None:
    body = BODY | {"max_tokens": 64}
    thought, _ = post(thinking, "/v1/messages", body)["content"]
    assert thought["type"] == "thinking"
    assert thought["signature"]
    events = chunks(thinking, "/v1/messages", body)
    (start,) = (
        one["content_block"]
        for one in events
        if one["type"] == "content_block_start" and one["index"] == 0
    )
    assert start["signature"] == ""
    signed = [one["delta"] for one in events if one.get("delta", {}).get("signature")]
    assert signed == [{"type": "signature_delta", "signature": thought["signature"]}]
    assert post(thinking, "/v1/messages", body | {"messages": [
        *MESSAGES, {"role": "assistant", "content": [thought]}, *MESSAGES]})  # fmt: skip


def test_a_turn_of_a_thought_alone_is_a_turn() -> None:
    turn = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"}],
    }
    given = {"messages": [*MESSAGES, turn, *MESSAGES], "max_tokens": 1}
    _, found, _ = MessagesRequest.model_validate(given).as_chat()["messages"]
    assert found == {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    last = MessagesRequest.model_validate(
        {"messages": [*MESSAGES, turn], "max_tokens": 1}
    ).as_chat()
    assert [one["role"] for one in last["messages"]] == ["user"]
    assert "continue_final_message" not in last
