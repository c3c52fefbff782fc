"""What clients send by habit is taken as meant, on every route."""

from __future__ import annotations

import httpx
import pytest

from tests.server.conftest import post, running, tool

ASKED = [{"role": "user", "content": "One two three"}]
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}}
FILE = {"type": "document", "title": "a.txt", "source": {"type": "text", "data": "Within."}}
READ = {"name": "Read", "input_schema": {"type": "object", "properties": {"p": {"type": "string"}}}}


def result(content: object) -> dict:
    called = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"p": "a"}}
    given = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    messages = [{"role": "assistant", "content": [called]}, {"role": "user", "content": [given]}]
    return {"messages": [*ASKED, *messages], "max_tokens": 2, "tools": [READ]}


@pytest.fixture(scope="module")
def vectors(llm):
    with running(lambda: llm, embeddings=True) as (url, _):
        yield url


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/api/tags", "/api/ps", "/version"])
def test_head_is_get_without_the_body(url, path):
    whole, head = httpx.get(url + path), httpx.head(url + path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["content-length"] == str(len(whole.content))


def test_a_model_is_called_latest(llm):
    with running(lambda: llm, strict_model_name=True, served_model_name=("tiny",)) as (url, _):
        body = {"messages": ASKED, "max_tokens": 1}
        assert post(url, "/v1/chat/completions", body | {"model": "tiny:latest"})["choices"]
        post(url, "/v1/chat/completions", body | {"model": "tiny:7b"}, 404)


def test_many_texts_are_read_in_slices(vectors):
    texts = [f"{number} is a number" for number in range(70)]
    found = post(vectors, "/v1/embeddings", {"input": texts})["data"]
    assert [one["index"] for one in found] == [*range(70)]
    for number in (0, 63, 64, 69):
        (alone,) = post(vectors, "/v1/embeddings", {"input": texts[number]})["data"]
        assert alone["embedding"] == pytest.approx(found[number]["embedding"], abs=1e-5)
    error = post(vectors, "/v1/embeddings", {"input": ["a"] * 2049}, 400)["error"]
    assert "the limit is 2048" in error["message"]
    asked = {"query": "a", "documents": ["a", "b c"] * 1024}
    found = post(vectors, "/v1/rerank", asked)["results"]
    assert sorted(one["index"] for one in found) == [*range(2048)]
    more = asked | {"documents": ["a"] * 2049}
    assert "the limit is 2048" in post(vectors, "/v1/rerank", more, 400)["error"]["message"]
    ranked = post(vectors, "/v1/rerank", {"query": "a", "documents": texts})["results"]
    assert len(ranked) == 70


def test_texts_beyond_the_context_are_cut_where_the_client_says_so(vectors):
    long = "word " * 5000
    post(vectors, "/v1/embeddings", {"input": long}, 400)
    assert post(vectors, "/v1/embeddings", {"input": long, "truncate": "END"})["data"]
    assert post(vectors, "/api/embed", {"input": [long, "a"]})["embeddings"]
    assert "error" in post(vectors, "/api/embed", {"input": long, "truncate": False}, 400)
    (new,) = post(vectors, "/api/embed", {"input": "abc"})["embeddings"]
    assert post(vectors, "/api/embeddings", {"prompt": "abc"})["embedding"] == new


@pytest.mark.parametrize(
    "content", [[PICTURE], [FILE], [{"type": "tool_reference", "tool_name": "f"}], "text"]
)
def test_what_a_tool_gives_ends_no_session(url, content):
    assert post(url, "/v1/messages", result(content))["content"] is not None


def test_pictures_of_the_user_are_refused_and_their_files_of_text_read(url):
    body = {"max_tokens": 2}
    said = [{"role": "user", "content": [FILE, {"type": "text", "text": "Sum it up."}]}]
    counted = post(url, "/v1/messages/count_tokens", {"messages": said})["input_tokens"]
    alone = post(url, "/v1/messages/count_tokens", {"messages": ASKED})["input_tokens"]
    assert counted > alone
    said = [{"role": "user", "content": [PICTURE]}]
    assert "type 'image'" in str(post(url, "/v1/messages", body | {"messages": said}, 400))


def test_the_assistants_beginning_is_gone_on_with(url):
    begun = {"role": "assistant", "content": "One two"}
    body = {"messages": [*ASKED, begun], "max_tokens": 6, "temperature": 0}
    (text,) = post(url, "/v1/messages", body)["content"]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    chat = post(url, "/v1/chat/completions", body | more)["choices"][0]["message"]["content"]
    assert text["text"] == chat


def test_samplers_have_the_order_of_the_request_or_of_llama_cpp(url):
    body = {"prompt": "a", "max_tokens": 2}
    asked = body | {"samplers": ["min_p", "temp"], "top_k": 3}
    settings = post(url, "/completion", asked)["generation_settings"]
    assert (settings["samplers"], settings["top_k"]) == (["min_p", "temperature"], 0)
    own = post(url, "/completion", body)["generation_settings"]["samplers"]
    assert own[-1] == "temperature"
    assert post(url, "/v1/completions", asked)["choices"][0]["text"]


def test_ollamas_context_goes_on(url):
    body = {"prompt": "One two", "stream": False, "options": {"num_predict": 3}}
    first = post(url, "/api/generate", body)
    count = first["prompt_eval_count"] + first["eval_count"]
    assert len(first["context"]) == count
    second = post(url, "/api/generate", body | {"context": first["context"]})
    assert second["prompt_eval_count"] >= count + first["prompt_eval_count"] - 1
    assert second["context"][:count] == first["context"]


def test_the_tools_that_may_be_called_are_named_in_both_forms(url):
    tools = [tool("a"), tool("mcp__" + "b" * 100), tool("größe/lesen")]
    named = [{"type": "function", "function": {"name": "a"}}]
    body = {"messages": ASKED, "max_tokens": 1, "tools": tools}
    choices: list[object] = ["any", {"type": "any"}, {"type": "required"}, {"type": "auto"}]
    choices += [
        {"type": "allowed_tools", "mode": "auto", "tools": named},
        {"type": "tool", "name": "a"},
    ]
    for choice in choices:
        assert post(url, "/v1/chat/completions", body | {"tool_choice": choice})["choices"]


def test_a_call_that_a_limit_cuts_is_on_no_route(url):
    pytest.importorskip("llguidance", reason="required calls need llguidance")
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string", "minLength": 200}},
        "required": ["x"],
    }
    function = {"name": "f", "parameters": schema}
    wire = {"type": "function", "function": function}
    body = {"messages": ASKED, "max_tokens": 40, "tools": [wire], "tool_choice": "required"}
    (choice,) = post(url, "/v1/chat/completions", body)["choices"]
    assert (choice["finish_reason"], choice["message"].get("tool_calls")) == ("length", None)
    body |= {"tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "any"}}
    found = post(url, "/v1/messages", body)
    assert found["stop_reason"] == "max_tokens"
    assert not [one for one in found["content"] if one["type"] == "tool_use"]
    body = {
        "messages": ASKED,
        "tools": [wire],
        "tool_choice": "required",
        "options": {"num_predict": 40},
    }
    for line in [post(url, "/api/chat", body | {"stream": False}), *lines(url, body)]:
        assert "tool_calls" not in line.get("message", {})


def test_a_message_without_a_limit_ends_where_the_context_does(url):
    asked = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}
    found = post(url, "/v1/messages", asked)
    assert found["stop_reason"] == "max_tokens"
    usage = found["usage"]
    tokens = ("input_tokens", "cache_read_input_tokens", "output_tokens")
    assert sum(usage[name] for name in tokens) == 512


def lines(url: str, body: dict) -> list[dict]:
    answer = httpx.post(f"{url}/api/chat", json=body, timeout=60)
    return [httpx.Response(200, text=line).json() for line in answer.text.splitlines()]
