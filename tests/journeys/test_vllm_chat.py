"""vLLM's `LLM.chat` with thoughts, tools and formats."""

from __future__ import annotations

import asyncio
import json
import pickle

import pytest
from pydantic import BaseModel

from forerun import AsyncLLM, RequestError, SamplingParams, StructuredOutputsParams
from tests.journeys.conftest import GREEDY, QUESTION, texts

TEMPLATE = (
    "{{ messages[-1].content }}{% if tools %}<tool_call>{{ tools | length }}{% endif %}<think>"
)
FORM = StructuredOutputsParams(
    regex='[a-z]{3,9}</think>(No[.])?<tool_call>[{]"name": "add", "arguments": [{]"a": [1-9][}][}]</tool_call>'
)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_of_chat_has_its_thought_and_its_calls_apart(smollm2, is_async: bool) -> None:
    params = SamplingParams(temperature=0, max_tokens=64, structured_outputs=FORM)
    settings = {"tools": TOOLS, "chat_template": TEMPLATE}
    if is_async:
        output = asyncio.run(AsyncLLM(smollm2).chat(QUESTION, params, **settings))
    else:
        (output,) = smollm2.chat(QUESTION, params, **settings)
    said = output.outputs[0]
    thought, _, _ = said.text.partition("</think>")
    assert said.reasoning == thought
    (call,) = said.tool_calls
    assert call["function"]["name"] == "add"
    assert set(json.loads(call["function"]["arguments"])) == {"a"}
    assert call["id"].startswith("call_")
    message = said.message.document()
    assert message["role"] == "assistant"
    smollm2.chat([*QUESTION, message, {"role": "tool", "content": "3"}], GREEDY, **settings)
    assert pickle.loads(pickle.dumps(output)) == output


CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}}
WIRE = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "strict": None,
            "parameters": CITY | {"required": ["city"], "additionalProperties": False},
        },
    },
    {"type": "function", "name": "clock", "parameters": {"type": "object", "maxProperties": 0}},
    {"type": "web_search"},
]
"""As clients send them: one with a field that is null, one that is not nested, one that others run."""
NAMED = {"type": "function", "function": {"name": "clock"}}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("choice", "name"), [("required", "weather"), (NAMED, "clock")])
def test_a_call_is_made_where_one_is_asked_for(smollm2, choice, name, is_async) -> None:
    params = SamplingParams(temperature=0, max_tokens=64)
    settings = {"tools": WIRE, "tool_choice": choice, "parallel_tool_calls": False}
    asked = [{"role": "user", "content": "What is the weather in Rome?"}]
    if is_async:
        output = asyncio.run(AsyncLLM(smollm2).chat(asked, params, **settings))
    else:
        (output,) = smollm2.chat(asked, params, **settings)
    (call,) = output.outputs[0].tool_calls
    assert call.function.name == call["function"]["name"] == name
    assert set(json.loads(call.function.arguments)) == ({"city"} if name == "weather" else set())
    assert "web_search" not in output.prompt


def test_chat_asks_for_a_call_and_a_format_as_the_server_does(smollm2) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}}
    schema |= {"required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    found = smollm2.chat([QUESTION, QUESTION], [GREEDY, GREEDY], response_format=form)
    assert all(json.loads(text)["n"] <= 9 for text in texts(found))
    plain = smollm2.chat(QUESTION, GREEDY)
    assert texts(smollm2.chat(QUESTION, GREEDY, response_format={"type": "text"})) == texts(plain)
    assert texts(smollm2.chat(QUESTION, GREEDY, tools=WIRE, tool_choice="none")) == texts(plain)
    (thinking,) = smollm2.chat(
        QUESTION,
        SamplingParams(temperature=0, max_tokens=40),
        response_format=form,
        chat_template="{{ messages[-1].content }}<think>",
    )
    said = thinking.outputs[0].message
    assert said.reasoning
    assert json.loads(said.content)["n"] <= 9
    begun = [*QUESTION, {"role": "assistant", "content": "The capital"}]
    (output,) = smollm2.chat(
        begun, GREEDY, continue_final_message=True, add_generation_prompt=False
    )
    assert output.prompt.endswith("The capital")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice needs tools"),
        ({"tools": WIRE, "tool_choice": "often"}, "tool_choice must be none, auto, required or"),
        ({"tools": WIRE, "tool_choice": {"name": "x"}}, r"one of the tools \(weather, clock\)"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\].function must have a name"),
        ({"response_format": "json"}, "response_format must be an object like"),
        ({"response_format": {"type": "json"}}, "text, json_object or json_schema, got 'json'"),
    ],
)
def test_what_a_chat_asks_wrongly_is_said(smollm2, settings, message) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        smollm2.chat(QUESTION, GREEDY, **settings)
    assert "\n" not in str(caught.value)


def test_an_answer_without_marks_is_what_it_says(smollm2) -> None:
    said = smollm2.chat(QUESTION, GREEDY)[0].outputs[0]
    assert said.message.content == said.text
    assert (said.reasoning, said.tool_calls) == (None, [])


def test_a_pydantic_class_is_a_response_format(smollm2) -> None:
    class Town(BaseModel):
        name: str
        is_capital: bool

    params = SamplingParams(temperature=0, max_tokens=60)
    (output,) = smollm2.chat(QUESTION, params, response_format=Town)
    assert isinstance(Town.model_validate_json(output.outputs[0].text).is_capital, bool)


def test_counts_say_tau_and_are_json(smollm2) -> None:
    (output,) = smollm2.generate("one two three one two three one", GREEDY)
    stats = output.outputs[0].stats
    assert repr(stats).startswith(f"SpecStats(tau={stats.tau:.2f}, passes={stats.passes}, ")
    assert json.loads(json.dumps(stats.to_dict()))["tau"] == stats.tau
