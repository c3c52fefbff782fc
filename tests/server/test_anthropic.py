"""Anthropic's client at /v1/messages: text, tools and streams, and errors of its own kinds."""

from __future__ import annotations

import json

import httpx
import pytest

from forerun.server.api.anthropic import MessagesRequest
from forerun.server.errors import ApiError
from tests.server.conftest import post, running

anthropic = pytest.importorskip("anthropic", reason="its routes are tested with its own client")

QUESTION = [{"role": "user", "content": "Write a list of ten animals."}]
GREEDY = {"temperature": 0}
OWN = {
    "model": "tiny",
    "max_tokens": 32,
    "extra_body": GREEDY,
}  # the newest client has no name for it
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
FORCED = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}}


@pytest.fixture(scope="module")
def claude(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made


def test_prompts_are_counted_and_a_system_message_may_stand_among_the_messages(claude):
    found = claude.messages.create(messages=QUESTION, system="Be brief.", **OWN)
    whole = found.usage.input_tokens + found.usage.cache_read_input_tokens
    counted = claude.messages.count_tokens(model="tiny", messages=QUESTION, system="Be brief.")
    assert counted.input_tokens == whole
    assert found.timings["draft_n_accepted"] > 0
    within = [{"role": "system", "content": "Be brief."}, *QUESTION]
    assert claude.messages.create(messages=within, **OWN).content[0].text == found.content[0].text
    word = found.content[0].text.split()[3]
    stopped = claude.messages.create(messages=within, stop_sequences=[word], **OWN)
    assert stopped.stop_sequence == word


@pytest.mark.parametrize("more", [{}, FORCED], ids=["text", "call"])
def test_the_client_puts_a_stream_together(claude, more):
    pytest.importorskip("llguidance", reason="required calls need llguidance")
    (whole,) = claude.messages.create(messages=QUESTION, **more, **OWN).content
    with claude.messages.stream(messages=QUESTION, **more, **OWN) as stream:
        (block,) = stream.get_final_message().content
    assert block.model_dump(exclude={"id"}) == whole.model_dump(exclude={"id"})


@pytest.mark.parametrize(
    "content", ["No such file", [{"type": "text", "text": "No such file"}], None]
)
def test_the_result_of_a_tool_that_failed_says_so(llm, content):
    def prompt(url: str, **more: object) -> str:
        result = {"type": "tool_result", "tool_use_id": "a", "content": content, **more}
        given = {"messages": [*QUESTION, {"role": "user", "content": [result]}]}
        chat = MessagesRequest.model_validate(given | {"max_tokens": 1}).as_chat()
        return post(url, "/apply-template", chat)["prompt"]

    with running(lambda: llm) as (url, _):
        said = prompt(url, is_error=True)
        assert "Error:" in said
        assert ("No such file" in said) == (content is not None)
        for more in ({}, {"is_error": False}, {"is_error": None}):
            assert "Error:" not in prompt(url, **more)
        with pytest.raises(ApiError, match="is_error='yes': it must be true or false"):
            prompt(url, is_error="yes")


def test_system_messages_are_one(url):
    messages = [{"role": "system", "content": "In French."}, *QUESTION]
    body = {"system": [{"type": "text", "text": "Be brief."}], "messages": messages}
    chat = MessagesRequest.model_validate(body | {"max_tokens": 1}).as_chat()
    assert [message["role"] for message in chat["messages"]] == ["system", "user"]
    assert "Be brief.\nIn French." in post(url, "/apply-template", chat)["prompt"]


def test_other_errors_are_of_the_clients_kinds(claude, llm):
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(messages=QUESTION, **OWN | {"model": "claude"})
    with running(lambda: llm, api_key="secret") as (url, _):
        for key, status in (("wrong", 401), ("secret", 200)):
            body = {"messages": QUESTION, "model": "tiny", "max_tokens": 1}
            answer = httpx.post(f"{url}/v1/messages", json=body, headers={"x-api-key": key})
            assert answer.status_code == status
            assert answer.json()["type"] == ("message" if status == 200 else "error")


def test_a_conversation_that_is_kept_is_sent_whole_again(url):
    """Anthropic's tool runner asks for a thread, and on our refusal sends all messages itself."""
    asked, said = [], "The code word is heliotrope."

    @anthropic.beta_tool
    def recall() -> str:
        """Recall it."""
        return said

    forced = {"tools": [recall], "tool_choice": {"type": "tool", "name": "recall"}}
    messages = [{"role": "user", "content": "What is the code word?"}]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        client._client.event_hooks = {"request": [lambda one: asked.append(one.content)]}
        runner = client.beta.messages.tool_runner(
            messages=messages, **forced, **OWN, max_iterations=2
        )
        bodies = [*runner]
    sent = [json.loads(one) for one in asked]
    assert "thread" in sent[0], "this client keeps no threads: the test shows nothing"
    assert not any("thread" in one for one in sent[1:])
    assert len(bodies) == 2
    assert [one["role"] for one in sent[-1]["messages"]] == ["user", "assistant", "user"]
    assert said in json.dumps(sent[-1]["messages"])
    refused = post(url, "/v1/messages", sent[0], 400)["error"]
    assert refused["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }
