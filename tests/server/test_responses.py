"""OpenAI's client at /v1/responses: text, forms, tools and streams, with the tokens of chat completions."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, Field

from forerun.server.api.responses import ResponsesRequest
from tests.server.conftest import post, running
from tests.server.test_reasoning import with_template

QUESTION = "Write a list of ten animals."
OWN = {"model": "tiny", "temperature": 0, "max_output_tokens": 32}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "weather", "parameters": PARAMETERS}
FORCED = {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}}


class Animal(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    legs: int = Field(ge=0, le=99)


def test_input_may_be_a_text_or_parts_and_its_instructions_a_message(client):
    found = client.responses.create(input=QUESTION, instructions="Be brief.", **OWN)
    assert found.timings["draft_n_accepted"] > 0
    parts = [{"role": "developer", "content": "Be brief."}]
    parts += [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    assert client.responses.create(input=parts, **OWN).output_text == found.output_text


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("content", ["In French.", [{"type": "input_text", "text": "In French."}]])
def test_instructions_and_a_system_message_are_one(llm, role, content):
    once = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('one system message') }}{% endif %}{{ m.role }}: {{ m.content }};{% endfor %}"
    )
    said = [{"role": role, "content": content}, {"role": "user", "content": "Hi"}]
    body = {"instructions": "Be brief.", "input": said, "max_output_tokens": 1}
    with running(lambda: with_template(llm, once)) as (url, _):
        assert post(url, "/v1/responses", body)["object"] == "response"
        chat = ResponsesRequest.model_validate(body).as_chat()
        prompt = post(url, "/apply-template", {"messages": chat["messages"]})["prompt"]
        assert prompt == "system: Be brief.\nIn French.;user: Hi;"
        later = ResponsesRequest.model_validate(body | {"input": said[::-1]}).as_chat()
        prompt = post(url, "/apply-template", {"messages": later["messages"]})["prompt"]
        assert prompt == "system: Be brief.;user: Hi\n\nIn French.;"  # it stays where it is


def test_events_of_a_text_come_in_openais_order(client):
    events = [*client.responses.create(input=QUESTION, stream=True, **OWN)]
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    done, whole = events[-2:]  # what is cut says so wherever it is told
    assert done.item.status == whole.response.output[-1].status == "incomplete"


def test_answers_are_parsed_into_models(client):
    pytest.importorskip("llguidance", reason="structured output needs llguidance")
    found = client.responses.parse(input="Describe an animal.", text_format=Animal, **OWN)
    assert isinstance(found.output_parsed, Animal)
    assert found.status == "completed"


def test_the_client_puts_a_streamed_call_together(client):
    pytest.importorskip("llguidance", reason="required calls need llguidance")
    (call,) = client.responses.create(input=QUESTION, **FORCED, **OWN).output
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    with client.responses.stream(input=QUESTION, **FORCED, **OWN) as stream:
        stream.until_done()
        (streamed,) = stream.get_final_response().output
    assert streamed.arguments == call.arguments
