"""Agents' requests are answered as they are sent: foreign tools and fields, empty turns, switches of thinking."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from forerun.compat.ignored_fields import MAX_HEADER, say_once
from forerun.server.api.anthropic import MessagesRequest
from forerun.server.config import MAX_TOKENS
from tests.server.conftest import chunks, post, running, tool
from tests.server.test_reasoning import with_template

SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}
INNER = {**SHELL, "name": "close", "description": None}
INNER["parameters"] = {**SHELL["parameters"], "additionalProperties": False}
PATCH = {"type": "custom", "name": "patch", "description": "d", "format": {"type": "text"}}
CODEX = {
    **{"model": "m", "instructions": "Be brief.", "input": "Hi", "store": False, "include": []},
    **{"parallel_tool_calls": False, "reasoning": {"effort": "low"}, "prompt_cache_key": "k"},
    "client_metadata": {"a": "b"},
    "tools": [
        *(SHELL, PATCH, {"type": "web_search", "external_web_access": False}),
        {"type": "namespace", "name": "mcp", "tools": [INNER]},
    ],
}
ASKED = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def loose(llm) -> Iterator[str]:
    with running(lambda: llm, strict_model_name=False) as (url, _):
        yield url


def test_what_codex_sends_is_answered(loose, caplog):
    say_once.cache_clear()
    found = post(loose, "/v1/responses", CODEX | {"max_output_tokens": 1})
    post(loose, "/v1/responses", CODEX | {"max_output_tokens": 1})
    assert found["tools"] == CODEX["tools"]
    for name in ("client_metadata", "tools of type web_search"):
        assert caplog.text.count(f"field '{name}'") == 1


def test_an_answer_with_tools_ends_where_the_server_says(llm, monkeypatch):
    asked = []
    with running(lambda: llm) as (url, service):
        submit = service.worker.submit

        def spy(prompts, params, *given, **named):
            asked.append(params.max_tokens)
            params.max_tokens = 1
            return submit(prompts, params, *given, **named)

        monkeypatch.setattr(service.worker, "submit", spy)
        for more in ({"tools": [tool("f")]}, {}, {"tools": [tool("f")], "max_tokens": 7}):
            post(url, "/v1/chat/completions", {"messages": ASKED, **more})
    assert asked == [MAX_TOKENS, MAX_TOKENS, 7]


def test_calls_come_back_as_the_tools_were_offered(loose):
    pytest.importorskip("llguidance", reason="required calls need llguidance")
    body = CODEX | {"max_output_tokens": 80, "temperature": 0}
    chosen = body | {"tool_choice": {"type": "custom", "name": "patch"}}
    (item,) = post(loose, "/v1/responses", chosen)["output"]
    assert (item["type"], item["name"]) == ("custom_tool_call", "patch")
    events = chunks(loose, "/v1/responses", chosen)
    kinds = [event["type"] for event in events]
    assert "response.custom_tool_call_input.done" in kinds
    assert "response.function_call_arguments.delta" not in kinds
    assert events[-1]["response"]["output"][0]["input"] == item["input"]
    chosen = body | {"tool_choice": {"type": "function", "name": "close"}}
    (item,) = post(loose, "/v1/responses", chosen)["output"]
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "close", "mcp")
    said = [
        {"type": "message", "role": "user", "content": "Patch it."},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
        {"type": "web_search_call", "status": "completed"},
    ]
    assert post(loose, "/v1/responses", body | {"input": said, "max_output_tokens": 1})["output"]


def test_unknown_fields_are_left_out_and_named(url, llm):
    body = {"messages": ASKED, "max_tokens": 1}
    for field in ("web_search_options", "prompt_cache_options", "client_metadata", "betas", "x"):
        assert post(url, "/v1/chat/completions", body | {field: {}})["choices"]
    many = {f"field_{number}": 1 for number in range(40)}
    assert post(url, "/v1/chat/completions", body | many)["choices"]
    odd = body | {"x" * 10_000: 1, "temprature": 1, "a\r\nb": 1, "user": "me", "topP": 0.5}
    answer = httpx.post(url + "/v1/chat/completions", json=odd | {"stream_options": {"usages": 1}})
    assert answer.status_code == 200, answer.text
    named = answer.headers["x-forerun-ignored"]
    assert "temprature (did you mean temperature?)" in named
    assert "a??b" in named
    assert {"user", "usages"} <= {*named.split(", ")}
    assert "topP" not in named
    assert len(named) <= MAX_HEADER
    answer = httpx.post(url + "/v1/chat/completions", json=body)
    assert "x-forerun-ignored" not in answer.headers
    with running(lambda: llm, strict_requests=True) as (strict, _):
        for field, status in (("user", 200), ("store", 200), ("temprature", 400)):
            answer = httpx.post(strict + "/v1/chat/completions", json=body | {field: "1"})
            assert answer.status_code == status, answer.text
    assert "did you mean 'temperature'" in answer.json()["error"]["message"]


BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.{};"}


@pytest.mark.parametrize("keeps", [False, True])
def test_the_first_block_of_claude_code_ends_no_prefix(llm, keeps):
    rules = {"type": "text", "text": " ".join(f"Rule {i}: be exact." for i in range(30))}
    with running(lambda: llm, keep_billing_header=keeps) as (url, _):
        for number in (1, 2):
            first = {**BILLING, "text": BILLING["text"].format(number)}
            body = {"system": [first, rules], "messages": ASKED, "max_tokens": 1}
            counted = post(url, "/v1/messages/count_tokens", body)["input_tokens"]
            usage = post(url, "/v1/messages", body)["usage"]
    read, cached = usage["input_tokens"], usage["cache_read_input_tokens"]
    assert read + cached == counted
    assert (cached > read) != keeps


def test_no_request_needs_a_new_token(url):
    text = "One two three one two"
    whole = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 1}
    (scored,) = post(url, "/v1/completions", whole)["choices"]
    longer = post(url, "/v1/completions", whole | {"max_tokens": 1})["choices"][0]
    assert scored["text"] == text
    assert scored["finish_reason"] == "length"
    shown = scored["logprobs"]["token_logprobs"]
    assert shown == longer["logprobs"]["token_logprobs"][:-1]
    read = post(url, "/completion", {"prompt": text, "n_predict": 0})
    assert (read["content"], read["tokens_predicted"]) == ("", 0)
    assert read["tokens_cached"] == read["tokens_evaluated"]
    again = post(url, "/completion", {"prompt": text, "n_predict": 1})
    assert again["timings"]["cache_n"] > 0
    events = chunks(url, "/v1/chat/completions", {"messages": ASKED, "max_tokens": 0})
    assert [one["choices"][0]["finish_reason"] for one in events if one["choices"]][-1] == "length"
    assert not any(one["choices"][0]["delta"].get("content") for one in events if one["choices"])


def test_logprobs_are_those_of_the_text(url, llm):
    body = {"messages": ASKED, "max_tokens": 4}
    (choice,) = post(url, "/v1/chat/completions", body | {"logprobs": False})["choices"]
    assert choice["logprobs"] is None
    end = {"logit_bias": {str(llm.tokenizer.eos_id): 100}, "logprobs": True, "temperature": 0}
    (choice,) = post(url, "/v1/chat/completions", body | end)["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["content"] == []
    events = chunks(url, "/v1/chat/completions", body | end)
    entries = [one["choices"][0]["logprobs"] for one in events if one["choices"]]
    assert not any(one and one["content"] for one in entries)


SWITCHED = (
    "{{ messages[-1].content }}|{{ enable_thinking }}|{{ reasoning_effort }}|{{ thinking_budget }}"
)
OPENS = "{{ messages[-1].content }}<think>\n{# </think> #}"


def test_switches_of_thinking_reach_the_template(llm):
    chat = "/apply-template"
    with running(lambda: with_template(llm, SWITCHED)) as (url, _):
        for asked, expected in (
            ({"reasoning_effort": "low"}, "Hi|True|low|"),
            ({"reasoning": {"effort": "none"}}, "Hi|False||"),
            ({"thinking": {"type": "enabled", "budget_tokens": 99}}, "Hi|True||99"),
            ({"thinking": {"type": "disabled"}}, "Hi|False||"),
            ({"enable_thinking": False}, "Hi|False||"),
            ({"thinking_budget_tokens": 5}, "Hi|True||5"),
            ({"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": 7}}, "Hi|7||"),
            ({}, "Hi|||"),
        ):
            assert post(url, chat, {"messages": ASKED} | asked)["prompt"] == expected
    off = {"reasoning": "off"}
    with running(lambda: with_template(llm, SWITCHED), **off) as (url, _):
        for asked, expected in (({}, "Hi|False||"), ({"reasoning_effort": "low"}, "Hi|True|low|")):
            assert post(url, chat, {"messages": ASKED} | asked)["prompt"] == expected
    with running(lambda: with_template(llm, OPENS), **off) as (url, _):
        assert post(url, chat, {"messages": ASKED})["prompt"] == "Hi<think>\n\n</think>\n\n"
    with running(lambda: with_template(llm, OPENS)) as (url, _):
        prompts = [
            post(url, chat, {"messages": ASKED} | asked)["prompt"]
            for asked in ({}, {"reasoning_effort": "low"}, {"reasoning_effort": "none"})
        ]
        body = {"messages": ASKED, "max_tokens": 4, "reasoning_effort": "none"}
        message = post(url, "/v1/chat/completions", body)["choices"][0]["message"]
    assert prompts == ["Hi<think>\n", "Hi<think>\n", "Hi<think>\n\n</think>\n\n"]
    assert "reasoning" not in message
    effort = {"output_config": {"effort": "high"}, "messages": ASKED, "max_tokens": 1}
    assert MessagesRequest.model_validate(effort).as_chat()["reasoning_effort"] == "high"


@pytest.mark.parametrize("template", [OPENS, "{{ messages[-1].content }}\n{# <think> </think> #}"])
def test_a_thought_has_at_most_its_budget(template, llm):
    body = {"messages": ASKED, "max_tokens": 24, "temperature": 0, "thinking_budget": 5}
    with running(lambda: with_template(llm, template)) as (url, _):
        message = post(url, "/v1/chat/completions", body)["choices"][0]["message"]
        longer = post(url, "/v1/chat/completions", body | {"thinking_budget": -1})
    assert 0 < len(llm.tokenizer.encode(message["reasoning"], bos=False)) <= 5
    assert message["content"]
    assert "</think>" not in str(longer["choices"][0]["message"])
