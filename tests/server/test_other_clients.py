"""LiteLLM and LangChain talk with the server as with OpenAI's: text, streams, structured output, tools."""

from __future__ import annotations

import importlib
import json

import httpx
import pytest
from pydantic import BaseModel, ConfigDict, Field

pytestmark = [
    pytest.mark.clients,  # importing either takes seconds; their own deprecations are not ours
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]

QUESTION = [{"role": "user", "content": "Write a list of ten animals."}]
GREEDY = {"temperature": 0, "max_tokens": 48}


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=16)
    age: int = Field(ge=0, le=99)


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=12)


TOOL = {
    "type": "function",
    "function": {
        "name": "Weather",
        "description": "The weather of a city.",
        "parameters": Weather.model_json_schema(),
    },
}


@pytest.fixture(scope="module")
def expected(url) -> str:
    """The answer without any of those clients."""
    body = {"messages": QUESTION, **GREEDY}
    found = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    return found["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def litellm():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # asks the network at import otherwise
        yield importlib.import_module("litellm")


@pytest.fixture(scope="module")
def complete(litellm, url):
    def complete(**extra):
        own = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": "none", "timeout": 60}
        return litellm.completion(**own | {"messages": QUESTION} | GREEDY | extra)

    return complete


def test_litellm_reads_answers_and_streams(complete, expected):
    answer = complete()
    assert answer.choices[0].message.content == expected
    assert answer.usage.completion_tokens == 48
    chunks = [*complete(stream=True, stream_options={"include_usage": True})]
    assert "".join(one.delta.content or "" for chunk in chunks for one in chunk.choices) == expected
    assert len(chunks) > 3
    assert chunks[-1].usage.completion_tokens == 48


def test_litellm_gets_valid_json(complete):
    Person.model_validate_json(complete(response_format=Person).choices[0].message.content)


def test_litellm_gets_calls(complete):
    (choice,) = complete(tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, choice.finish_reason) == ("Weather", "tool_calls")
    assert {*json.loads(call.function.arguments)} == {"city"}


def test_litellm_knows_an_error_by_its_kind(litellm, complete):
    with pytest.raises(litellm.NotFoundError, match="not served here"):
        complete(model="openai/other", num_retries=0)
    with pytest.raises(litellm.BadRequestError, match="temperature must be"):
        complete(temperature=200, num_retries=0)


@pytest.fixture(scope="module")
def chain(url):
    langchain = importlib.import_module("langchain_openai")
    own = {"model": "tiny", "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
    return langchain.ChatOpenAI(**own, **GREEDY)


def test_langchain_reads_answers_and_streams(chain, expected):
    (question,) = QUESTION
    answer = chain.invoke([("user", question["content"])])
    assert answer.content == expected
    assert answer.usage_metadata["output_tokens"] == 48
    chunks = [*chain.stream([("user", question["content"])])]
    assert "".join(chunk.content for chunk in chunks) == expected
    assert len(chunks) > 3


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_parses_answers_into_its_own_model(chain, method):
    found = chain.with_structured_output(Person, method=method).invoke("Describe a person.")
    assert isinstance(found, Person)


def test_langchain_calls_tools_and_goes_on_with_their_results(chain):
    from langchain_core.messages import HumanMessage, ToolMessage

    question = HumanMessage("What is the weather in Paris?")
    first = chain.bind_tools([Weather], tool_choice="Weather").invoke([question])
    (call,) = first.tool_calls
    assert (call["name"], {*call["args"]}) == ("Weather", {"city"})
    result = ToolMessage("12 degrees", tool_call_id=call["id"])
    second = chain.bind_tools([Weather]).invoke([question, first, result])
    assert second.content or second.tool_calls
