"""Tools over HTTP: required calls are always valid, streams add up, and conversations with calls go on."""

from __future__ import annotations

import json

import httpx
import pytest

from forerun.compat.ignored_fields import say_once
from tests.decoding.test_calls import FAMILIES, TEMPLATE
from tests.server.conftest import post, running, tool
from tests.server.test_reasoning import with_template

pytest.importorskip("llguidance", reason="required calls need llguidance")


WEATHER = tool("weather", city={"type": "string", "maxLength": 12}, unit={"enum": ["C", "F"]})
CLOCK = tool("clock", zone={"type": "string", "maxLength": 8})
BARE = {"type": "function", "function": {"name": "stop"}}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
OWN = {"model": "tiny", "messages": QUESTION, "max_tokens": 120, "temperature": 0}
FLAT = {"type": "function", "name": "stop", "parameters": {"type": "object"}}
NAMED = {"type": "function", "function": {"name": "weather"}}


def check(call) -> dict:
    arguments = json.loads(call.function.arguments)
    assert call.type == "function"
    assert call.id.startswith("call_")
    if call.function.name == "weather":
        assert {*arguments} == {"city", "unit"}
        assert arguments["unit"] in ("C", "F")
    return arguments


def test_a_call_of_one_of_several_tools_is_valid(client):
    answer = client.chat.completions.create(
        tools=[WEATHER, CLOCK, BARE], tool_choice="required", parallel_tool_calls=False, **OWN
    )
    (one,) = answer.choices
    assert one.finish_reason == "tool_calls"
    assert one.message.content is None
    (call,) = one.message.tool_calls
    check(call)
    assert answer.timings["draft_n_accepted"] > 10


def test_of_the_tools_only_those_that_are_allowed_are_offered(url):
    named = [{"type": "function", "function": {"name": "clock"}}]
    chat = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    flat = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "clock"}],
    }
    body = OWN | {"tools": [WEATHER, CLOCK], "tool_choice": chat}
    (choice,) = post(url, "/v1/chat/completions", body)["choices"]
    assert {call["function"]["name"] for call in choice["message"]["tool_calls"]} == {"clock"}
    tools = [{"type": "function", **one["function"]} for one in (WEATHER, CLOCK)]
    asked = {
        "input": "What time is it?",
        "tools": tools,
        "tool_choice": flat,
        "max_output_tokens": 64,
    }
    calls = [
        one for one in post(url, "/v1/responses", asked)["output"] if one["type"] == "function_call"
    ]
    assert {one["name"] for one in calls} == {"clock"}
    auto = chat | {"allowed_tools": {"mode": "auto", "tools": named}}
    seen = {"messages": OWN["messages"], "tools": [WEATHER, CLOCK], "tool_choice": auto}
    prompt = post(url, "/apply-template", seen)["prompt"]
    assert '"clock"' in prompt
    assert '"weather"' not in prompt


def test_the_client_puts_a_streamed_call_together(client):
    own = {"tools": [WEATHER], "tool_choice": NAMED, **OWN}
    (expected,) = client.chat.completions.create(**own).choices[0].message.tool_calls
    deltas = [
        one.delta.tool_calls or []
        for chunk in client.chat.completions.create(stream=True, **own)
        for one in chunk.choices
    ]
    assert max(map(len, deltas)) == 1, "one entry a call and chunk"
    _, *others = [piece for delta in deltas for piece in delta]
    assert all(one.id is None and one.function.name is None for one in others)
    with client.chat.completions.stream(**own) as stream:
        stream.until_done()
        (final,) = stream.get_final_completion().choices
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.arguments == expected.function.arguments


def test_without_a_need_the_model_says_what_it_likes(client):
    own = OWN | {"max_tokens": 32}
    free = client.chat.completions.create(**own)
    none = client.chat.completions.create(tools=[WEATHER], tool_choice="none", **own)
    assert none.choices[0].message.content == free.choices[0].message.content
    auto = client.chat.completions.create(tools=[WEATHER], **own)
    assert auto.usage.prompt_tokens > free.usage.prompt_tokens
    assert auto.choices[0].message.content or auto.choices[0].message.tool_calls


def test_tools_and_a_form_are_a_call_or_an_answer_of_the_form(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = client.chat.completions.create(tools=[WEATHER], response_format=form, **OWN)
    message = answer.choices[0].message
    for call in message.tool_calls or ():
        check(call)
    if not message.tool_calls:
        assert json.loads(message.content)["ok"] in (True, False)


@pytest.mark.parametrize("part", [{"type": "integer", "minimum": 2**72}, {"const": -(2**63)}])
def test_numbers_that_cannot_be_written_leave_arguments_free_or_are_refused(url, part):
    body = OWN | {"tools": [tool("far", x=part)], "tool_choice": "required", "max_tokens": 8}
    alone = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert alone.status_code == 400, alone.text
    assert alone.json()["error"]["param"] == "tools"
    assert "beyond 2**" in alone.json()["error"]["message"]
    body["tools"].append(CLOCK)
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_a_required_call_is_written_as_the_template_writes_it_on_the_next_turn(llm):
    body = OWN | {"tools": [WEATHER], "tool_choice": NAMED, "logprobs": True}
    with running(lambda: with_template(llm, TEMPLATE % FAMILIES["qwen coder"])) as (url, _):
        (choice,) = post(url, "/v1/chat/completions", body)["choices"]
        written = "".join(one["token"] for one in choice["logprobs"]["content"])
        assert written.startswith("<tool_call>\n<function=weather>\n<parameter=city>\n")
        said = body | {"messages": [*QUESTION, choice["message"]], "add_generation_prompt": False}
        prompts = [post(url, "/apply-template", one)["prompt"] for one in (body, said)]
        assert prompts[1].startswith(prompts[0] + written.removesuffix("<|im_end|>"))


def test_a_required_call_that_begins_with_line_ends_follows_a_thought_that_the_prompt_opened(llm):
    opened = r"assistant\\n<think>\\n' if add_generation_prompt"
    template = TEMPLATE.replace(r"assistant\\n' if add_generation_prompt", opened)
    template = template % ("</think>\n\n" + FAMILIES["deepseek"])
    body = OWN | {"tools": [WEATHER], "tool_choice": NAMED, "thinking_budget": 8, "max_tokens": 200}
    with running(lambda: with_template(llm, template)) as (url, _):
        (choice,) = post(url, "/v1/chat/completions", body)["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert "city" in json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert message["reasoning_content"]
    assert "DSML" not in str(message)


def test_strict_arguments_are_noted_where_calls_are_free(url, caplog):
    say_once.cache_clear()
    bare = {"type": "object", "properties": {}}
    dialects = {
        "/v1/chat/completions": {
            "messages": QUESTION,
            "tools": [{"type": "function", "function": {"name": "a", "strict": True}}],
        },
        "/v1/responses": {
            "input": "Hi",
            "tools": [{"type": "function", "name": "a", "parameters": bare, "strict": True}],
        },
        "/v1/messages": {
            "messages": QUESTION,
            "tools": [{"name": "a", "input_schema": bare, "strict": True}],
        },
    }
    for route, body in dialects.items():
        for strict in (True, False):
            say_once.cache_clear()
            caplog.clear()
            tool_ = json.loads(json.dumps(body["tools"][0]).replace("true", str(strict).lower()))
            post(url, route, body | {"tools": [tool_], "max_tokens": 1})
            assert ("tools.strict" in caplog.text) == strict


def test_strict_changes_no_prompt(url):
    for strict in (True, False, None):
        body = {"input": "Hi", "max_output_tokens": 1, "tools": [{**FLAT, "strict": strict}]}
        assert (
            post(url, "/v1/responses", body)["usage"]["input_tokens"]
            == (post(url, "/v1/responses", body | {"tools": [FLAT]})["usage"]["input_tokens"])
        )
