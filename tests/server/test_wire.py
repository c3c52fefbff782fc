"""Every document and event is one of the types that OpenAI's and Anthropic's clients have, key by key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import types as openai_types
from openai.types import chat, responses
from pydantic import BaseModel

from forerun.server.errors import of_status
from tests.server.conftest import json_schema, running, tool
from tests.server.test_reasoning import THINKS, with_template
from tests.server.wire import faults

anthropic_types = pytest.importorskip("anthropic.types", reason="its messages are held to them")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SAID = [{"role": "user", "content": "Write a list of ten animals."}]
PARAMETERS = tool("weather", city={"type": "string", "maxLength": 6})["function"]["parameters"]
CALLED = {"tools": [tool("weather", city={"type": "string", "maxLength": 6})]}
ITS_CALL = {"tools": [{"type": "function", "name": "weather", "parameters": PARAMETERS}]}
CLAUDES = {"tools": [{"name": "weather", "input_schema": PARAMETERS}]}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
THOUGHT = {"structured_outputs": {"regex": "<think>[a-z]{4,9}</think>[A-Z]{4,9}"}}
ALL = {"return_token_ids": True, "timings_per_token": True}
USAGE = {"include_usage": True, "include_pieces": True}

BODIES: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {},
        {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1, "n": 2},
        {**CALLED, "tool_choice": "required", "max_tokens": 200},
        {"response_format": json_schema(SCHEMA), "max_tokens": 64},
        {"prediction": {"type": "content", "content": "1. Dog 2. Cat"}},
        {**ALL, "stream_options": USAGE, "stop": [" "]},
        {"stream_options": {**USAGE, "continuous_usage_stats": True}},
        {**THOUGHT, "max_tokens": 64},
    ],
    COMPLETIONS: [
        {},
        {"logprobs": 2, "n": 2},
        {"echo": True, "max_tokens": 4},
        {**ALL, "stream_options": USAGE, "prompt": ["One two", "Three"]},
    ],
    RESPONSES: [
        {},
        {"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.9},
        {**ITS_CALL, "tool_choice": "required", "max_output_tokens": 200},
        {**ITS_CALL, "tool_choice": {"type": "function", "name": "weather"}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
        {"text": {"format": {"type": "json_object"}}, "parallel_tool_calls": False},
        {**THOUGHT, "max_output_tokens": 64},
    ],
    MESSAGES: [
        {},
        {"system": "Be brief.", "stop_sequences": [" "]},
        {**CLAUDES, "tool_choice": {"type": "any"}, "max_tokens": 200},
        {**THOUGHT, "max_tokens": 64},
    ],
}
BARE = {
    CHAT: {"messages": SAID, "max_tokens": 12},
    COMPLETIONS: {"prompt": "One two three", "max_tokens": 12},
    RESPONSES: {"input": "Write a list of ten animals.", "max_output_tokens": 12},
    MESSAGES: {"messages": SAID, "max_tokens": 12},
}
WHOLE: dict[str, Any] = {
    CHAT: chat.ChatCompletion,
    COMPLETIONS: openai_types.Completion,
    RESPONSES: responses.Response,
    MESSAGES: anthropic_types.Message,
}
EVENTS: dict[str, Any] = {
    CHAT: chat.ChatCompletionChunk,
    COMPLETIONS: openai_types.Completion,
    RESPONSES: responses.ResponseStreamEvent,
    MESSAGES: anthropic_types.RawMessageStreamEvent,
}
CASES = [(route, body) for route, bodies in BODIES.items() for body in bodies]


class ErrorDocument(BaseModel):
    """What OpenAI's client reads of an answer that is an error."""

    error: openai_types.ErrorObject


class ModelList(BaseModel):
    """A page of OpenAI's list of models."""

    object: str
    data: list[openai_types.Model]


@pytest.fixture(scope="module")
def thinking(llm) -> Iterator[str]:
    with running(lambda: with_template(llm, THINKS), embeddings=True) as (url, _):
        yield url


def ask(url: str, route: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{url}{route}", json={"temperature": 0, **BARE[route], **body}, timeout=60)


def address(url: str, thinking: str, body: dict[str, Any]) -> str:
    """Where it is answered: by a model that marks its thoughts if it has some."""
    if "tool_choice" in body or "response_format" in body or "text" in body:
        pytest.importorskip("llguidance", reason="required forms need llguidance")
    return thinking if "structured_outputs" in body else url


@pytest.mark.parametrize(("route", "body"), CASES)
def test_an_answer_is_of_the_clients_type(url, thinking, route, body):
    answer = ask(address(url, thinking, body), route, body)
    assert answer.status_code == 200, answer.text
    assert not faults(answer.json(), WHOLE[route])


@pytest.mark.parametrize(("route", "body"), CASES)
def test_every_event_is_of_the_clients_type(url, thinking, route, body):
    answer = ask(address(url, thinking, body), route, body | {"stream": True})
    assert answer.status_code == 200, answer.text
    found = [block for block in answer.text.split("\n\n") if block]
    if EVENTS[route] in (chat.ChatCompletionChunk, openai_types.Completion):
        assert found.pop() == "data: [DONE]"
    assert found
    for block in found:
        *names, data = block.splitlines()
        document = json.loads(data.removeprefix("data: "))
        assert names == ([f"event: {document['type']}"] if "type" in document else [])
        assert not faults(document, EVENTS[route]), document


@pytest.mark.parametrize("route", BARE)
@pytest.mark.parametrize(
    ("body", "status"), [({"temperature": 200}, 400), ({"model": "other"}, 404)]
)
def test_an_error_is_of_the_clients_type(url, route, body, status):
    kind = anthropic_types.ErrorResponse if route == MESSAGES else ErrorDocument
    answer = ask(url, route, body)
    assert answer.status_code == status
    assert not faults(answer.json(), kind)


@pytest.mark.parametrize(
    "status", [400, 401, 403, 404, 405, 408, 413, 415, 421, 429, 500, 501, 503]
)
def test_errors_of_every_status_are_of_the_clients_types(status):
    error = of_status(status, "a")
    assert not faults(error.document(), ErrorDocument)
    if status == 413:  # Anthropic's documentation has it, its client's types do not
        assert error.anthropic()["error"]["type"] == "request_too_large"
    else:
        assert not faults(error.anthropic(), anthropic_types.ErrorResponse)


ENDS: dict[str, Any] = {
    CHAT: ErrorDocument,
    COMPLETIONS: ErrorDocument,
    RESPONSES: responses.ResponseErrorEvent,
    MESSAGES: anthropic_types.ErrorResponse,
}


@pytest.mark.parametrize("route", ENDS)
def test_an_error_in_a_stream_is_of_the_clients_type(llm, route):
    with running(lambda: llm) as (url, service):
        long = {**BARE[route], "max_tokens": 400, "ignore_eos": True, "stream": True}
        long |= {"max_output_tokens": long.pop("max_tokens")} if route == RESPONSES else {}
        with httpx.stream("POST", f"{url}{route}", json=long, timeout=60) as answer:
            found = ""
            for text in answer.iter_text():
                found += text
                for request in [*service._running]:
                    request.loop.call_soon_threadsafe(service.cancel_all)
        last = [line for line in found.splitlines() if line.startswith("data: {")][-1]
        document = json.loads(last.removeprefix("data: "))
        assert "shutting down" in str(document)
        assert not faults(document, ENDS[route])


def test_a_prompt_that_is_too_long_is_an_error_of_the_clients_type(url):
    answer = ask(url, COMPLETIONS, {"prompt": "word " * 2000})
    assert answer.status_code == 400
    assert not faults(answer.json(), ErrorDocument)


def test_models_vectors_and_counts_are_of_the_clients_types(url, thinking):
    assert not faults(httpx.get(f"{url}/v1/models").json(), ModelList)
    assert not faults(httpx.get(f"{url}/v1/models/tiny").json(), openai_types.Model)
    answer = httpx.post(f"{thinking}/v1/embeddings", json={"input": ["a", "b"]}, timeout=60)
    assert not faults(answer.json(), openai_types.CreateEmbeddingResponse)
    counted = httpx.post(f"{url}{CHAT}/input_tokens", json={"messages": SAID}, timeout=60)
    assert not faults(counted.json(), responses.InputTokenCountResponse)
    counted = httpx.post(f"{url}{MESSAGES}/count_tokens", json={"messages": SAID}, timeout=60)
    assert not faults(counted.json(), anthropic_types.MessageTokensCount)


@pytest.mark.parametrize("key", ["refusal", "id", "choices"])
def test_a_key_that_is_renamed_or_missing_is_found(url, key):
    """The check itself, on an answer that is spoilt."""
    document = ask(url, CHAT, {}).json()
    place = document["choices"][0]["message"] if key == "refusal" else document
    place["error_response"] = place.pop(key)
    found = faults(document, chat.ChatCompletion)
    assert any("error_response" in fault or f"'{key}'" in fault for fault in found)
