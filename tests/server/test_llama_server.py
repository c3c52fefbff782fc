"""llama-server's own routes: they say what OpenAI's do, in their form."""

from __future__ import annotations

import base64
import threading
import time

import httpx
import numpy as np
import pytest

from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.server.config import ServerConfig
from forerun.server.models import ModelSource, ServedModels
from forerun.text.fill_in import FillIn
from tests.server.conftest import chunks as events
from tests.server.conftest import post, running
from tests.server.test_reasoning import with_template

PROMPT = "One two three one two three one"
BODY = {"prompt": PROMPT, "n_predict": 12, "temperature": 0}


@pytest.fixture(scope="module")
def plain(url):
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    return post(url, "/v1/completions", body)["choices"][0]


@pytest.mark.parametrize("route", ["/completion", "/completions"])
def test_an_answer_tells_its_tokens_and_settings(url, plain, route):
    found = post(url, route, BODY | {"return_tokens": True})
    assert (found["content"], found["tokens"]) == (plain["text"], plain["token_ids"])
    assert (found["truncated"], found["stop"], found["prompt"]) == (False, True, PROMPT)
    assert found["timings"]["predicted_n"] == found["generation_settings"]["n_predict"] == 12
    assert post(url, route, BODY)["tokens"] == []


def test_a_stream_has_a_chunk_for_each_token(url, plain):
    *chunks, last = events(url, "/completion", BODY | {"n_probs": 2})
    assert [token for one in chunks for token in one["tokens"]] == plain["token_ids"]
    assert all(len(one["completion_probabilities"]) == len(one["tokens"]) == 1 for one in chunks)
    assert last["content"] == ""


def test_what_ended_an_answer_is_said(url, plain):
    word = plain["text"].split()[2]
    found = post(url, "/completion", BODY | {"stop": [word]})
    assert found["stopping_word"] == word
    full = post(url, "/completion", BODY | {"n_predict": -1, "ignore_eos": True})
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert {one["bias"] for one in full["generation_settings"]["logit_bias"]} == {None}


def test_prompts_of_texts_and_ids_mixed_are_one(url, llm):
    ids = llm.encode(PROMPT)
    as_text = post(url, "/completion", BODY)["content"]
    for prompt in (ids, {"prompt_string": PROMPT}, [*ids[:3], llm.tokenizer.decode(ids[3:])]):
        assert post(url, "/completion", BODY | {"prompt": prompt})["content"] == as_text
    many = post(url, "/completion", BODY | {"prompt": [ids, PROMPT, {"prompt_string": PROMPT}]})
    assert [one["index"] for one in many] == [0, 1, 2]
    assert {one["content"] for one in many} == {as_text}


def test_a_bias_may_be_a_list_of_ids_or_texts(url, llm, plain):
    first = plain["token_ids"][0]
    text = llm.tokenizer.text_of(first)
    for bias in ([[first, False]], [[first, -100]], [[text, False]], {text: -100}):
        found = post(url, "/completion", BODY | {"logit_bias": bias, "return_tokens": True})
        assert found["tokens"][0] != first


def test_only_the_fields_that_are_asked_for_come(url):
    wanted = ["content", "generation_settings/n_predict"]
    found = post(url, "/completion", BODY | {"response_fields": wanted})
    assert [*found] == wanted
    assert found["generation_settings/n_predict"] == 12


def test_slots_say_what_runs(url, served):
    body = BODY | {"n_predict": 200, "ignore_eos": True}
    sent = threading.Thread(target=post, args=(url, "/completion", body))
    sent.start()
    busy: list[dict] = []
    while sent.is_alive() and not busy:
        busy = [one for one in httpx.get(f"{url}/slots").json() if one["is_processing"]]
    (one,) = busy
    (token,) = one["next_token"]
    assert token["n_decoded"] + token["n_remain"] == 200
    read = one["n_prompt_tokens_processed"] + one["n_prompt_tokens_cache"]
    assert 0 <= read <= one["n_prompt_tokens"]
    sent.join()
    free = httpx.get(f"{url}/slots", params={"fail_on_no_slot": 1}).json()
    assert len(free) == 4
    assert not any(one["is_processing"] for one in free)


def test_no_free_slot_is_an_error_where_it_is_to_be_one(url):
    body = {"prompt": [PROMPT] * 4, "n_predict": 150, "ignore_eos": True}
    sent = threading.Thread(target=post, args=(url, "/completion", body))
    sent.start()
    statuses = set[int]()
    while sent.is_alive() and 503 not in statuses:
        statuses.add(httpx.get(f"{url}/slots", params={"fail_on_no_slot": 1}).status_code)
        time.sleep(0.001)
    sent.join()
    assert 503 in statuses


def test_props_and_templates_are_the_models(url, llm):
    props = httpx.get(f"{url}/props").json()
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == llm.max_len
    assert props["chat_template"] == llm.tokenizer.chat_template
    messages = [{"role": "user", "content": "Hi"}]
    text = post(url, "/apply-template", {"messages": messages})["prompt"]
    assert text == llm.tokenizer.apply_chat_template(messages)
    count = post(url, "/chat/completions/input_tokens", {"messages": messages})
    assert count["input_tokens"] == len(llm.encode(messages))


def test_short_paths_are_the_long_ones(url):
    assert httpx.get(f"{url}/models").json() == httpx.get(f"{url}/v1/models").json()
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    said = [
        post(url, route, body)["choices"][0]["message"]
        for route in ("/chat/completions", "/v1/chat/completions")
    ]
    assert said[0] == said[1]
    assert post(url, "/responses", {"input": "Hi", "max_output_tokens": 4})["object"] == "response"


def test_any_name_is_served_unless_names_are_strict(llm):
    with running(lambda: llm, strict_model_name=False, served_model_name=("a,b", "c")) as (url, _):
        listed = [one["id"] for one in httpx.get(f"{url}/v1/models").json()["data"]]
        assert listed == ["a", "b", "c"]
        for name, said in (("gpt-4", "a"), ("b", "b"), (None, "a")):
            body = BODY | {"model": name}
            assert post(url, "/completion", body)["model"] == said


def test_templates_of_the_server_and_what_they_read_hold_for_requests(llm):
    template = "{{ messages[0]['content'] }}{% if mark %}{{ mark }}{% endif %}"
    own = with_template(llm, template)
    messages = [{"role": "user", "content": "Hi"}]
    with running(lambda: own, chat_template_kwargs='{"mark": "!"}') as (url, _):
        assert post(url, "/apply-template", {"messages": messages})["prompt"] == "Hi!"
        body = {"messages": messages, "chat_template_kwargs": {"mark": "?"}}
        assert post(url, "/apply-template", body)["prompt"] == "Hi?"
        assert httpx.get(f"{url}/props").json()["chat_template"] == template
    assert llm.tokenizer.chat_template != template
    for name in ("messages", "chat_template", "self"):
        config = ServerConfig(chat_template_kwargs=f'{{"{name}": 1}}')
        with pytest.raises(ConfigError, match=f"--chat-template-kwargs .* not '{name}'"):
            ServedModels([ModelSource("tiny", lambda: own)], config)


def test_options_of_the_server_are_what_requests_leave_out(llm):
    own = {"seed": 7, "temperature": 0.5, "max_tokens": 3}
    with running(lambda: llm, sampling=own) as (url, _):
        found = post(url, "/completion", {"prompt": PROMPT})
        settings = found["generation_settings"]
        assert (settings["seed"], settings["temperature"]) == (7, 0.5)
        assert found["tokens_predicted"] == 3
        assert post(url, "/completion", BODY)["tokens_predicted"] == 12
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        assert post(url, "/v1/chat/completions", chat)["usage"]["completion_tokens"] <= 3


LOST = {"ignore_eos": True, "temperature": 0}
"""A model that does not end by itself."""
SAID = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("route", "body", "reason"),
    [
        (
            "/v1/chat/completions",
            {"messages": SAID},
            lambda one: one["choices"][0]["finish_reason"],
        ),
        (
            "/v1/completions",
            {"prompt": "Hi", "max_tokens": -1},
            lambda one: one["choices"][0]["finish_reason"],
        ),
        ("/v1/responses", {"input": "Hi"}, lambda one: one["incomplete_details"]["reason"]),
        ("/completion", {"prompt": "Hi"}, lambda one: one["stop_type"]),
        ("/completion", {"prompt": "Hi", "n_predict": -1}, lambda one: one["stop_type"]),
        ("/api/chat", {"messages": SAID, "stream": False}, lambda one: one["done_reason"]),
        (
            "/api/generate",
            {"prompt": "Hi", "raw": True, "stream": False},
            lambda one: one["done_reason"],
        ),
    ],
)
def test_a_lost_loop_ends_where_the_server_says(llm, monkeypatch, route, body, reason):
    monkeypatch.setattr("forerun.server.service.MAX_TOKENS", 9)

    def answered(url: str, **more: object) -> int:
        before = llm.loop.served.generation_tokens
        found = post(url, route, body | LOST | more)
        assert reason(found) in ("length", "limit", "max_output_tokens")
        return llm.loop.served.generation_tokens - before

    with running(lambda: llm) as (url, _):
        assert answered(url) == 9
        assert (
            httpx.get(f"{url}/props").json()["default_generation_settings"]["params"]["n_predict"]
            == 9
        )
    with running(lambda: llm, sampling={"max_tokens": 5}) as (url, _):
        assert answered(url) == 5
    with running(lambda: llm, sampling={"max_tokens": -1}) as (url, _):
        assert answered(url) > 400, "to the end of the context"


def test_who_asks_for_all_of_the_context_gets_it(llm):
    with running(lambda: llm, sampling={"max_tokens": 5}) as (url, _):
        found = post(url, "/completion", {"prompt": "Hi", "n_predict": -2} | LOST)
        assert found["tokens_predicted"] > 400
        assert found["truncated"]


def test_a_hole_is_filled_by_the_prompt_of_the_models_tokens(llm, monkeypatch):
    tokens = FillIn(prefix=4, suffix=5, middle=6, file=7, repo=8)
    monkeypatch.setitem(llm.tokenizer.__dict__, "fill_in", tokens)

    def encode(text):
        return llm.tokenizer.encode(text, bos=False)

    with running(lambda: llm) as (url, _):
        extra = [{"filename": "a.py", "text": "x = 1"}]
        body = {"input_prefix": "def ", "prompt": "f", "input_suffix": "()", "input_extra": extra}
        found = post(url, "/infill", body | {"n_predict": 4, "temperature": 0})
        ids = [8, *encode("repository\n"), 7, *encode("a.py\nx = 1\n"), 7, *encode("\n")]
        ids += [4, *encode("def f"), 5, *encode("()"), 6]
        assert found["prompt"] == llm.tokenizer.decode(ids, skip_special=False)
        assert found["tokens_evaluated"] == len(ids)
        told = {"prompt": "def f", "suffix": "()", "max_tokens": 4, "return_token_ids": True}
        choice = post(url, "/v1/completions", told)["choices"][0]
        assert choice["prompt_token_ids"] == ids[-len(choice["prompt_token_ids"]) :]
        assert choice["prompt_token_ids"][0] == 4


@pytest.mark.parametrize("pooling", ["last", "mean", "none"])
def test_vectors_are_the_states_that_the_head_reads(llm, pooling):
    with running(lambda: llm, embeddings=True, pooling=pooling) as (url, _):
        wanted = states(llm, PROMPT)
        found = post(url, "/embedding", {"content": PROMPT, "embd_normalize": -1})[0]["embedding"]
        expected = {"last": wanted[-1:], "mean": wanted.mean(0, keepdims=True), "none": wanted}
        np.testing.assert_allclose(found, expected[pooling], rtol=1e-5, atol=1e-5)
        if pooling == "none":
            post(url, "/v1/embeddings", {"input": PROMPT}, 400)
            return
        told = post(url, "/v1/embeddings", {"input": [PROMPT, "Hello"]})
        assert told["usage"]["prompt_tokens"] == len(llm.encode(PROMPT)) + len(llm.encode("Hello"))
        vector = np.array(told["data"][0]["embedding"])
        np.testing.assert_allclose(vector, found[0] / np.linalg.norm(found), rtol=1e-4, atol=1e-6)
        coded = post(url, "/v1/embeddings", {"input": PROMPT, "encoding_format": "base64"})
        raw = base64.b64decode(coded["data"][0]["embedding"])
        np.testing.assert_array_equal(np.frombuffer(raw, "<f4"), np.float32(vector))
        cut = post(url, "/v1/embeddings", {"input": PROMPT, "dimensions": 7})
        first = vector[:7] / np.linalg.norm(vector[:7])
        np.testing.assert_allclose(cut["data"][0]["embedding"], first, rtol=1e-4, atol=1e-6)
        for p, largest in ((1, np.abs(vector).sum()), (0, np.abs(vector).max() / 32760)):
            body = {"content": PROMPT, "embd_normalize": p}
            np.testing.assert_allclose(
                post(url, "/embedding", body)[0]["embedding"][0],
                vector / largest,
                rtol=1e-4,
                atol=1e-6,
            )
        for field, value in (("dimensions", 0), ("dimensions", 1 << 20), ("embd_normalize", -2)):
            error = post(url, "/v1/embeddings", {"input": "a", field: value}, 400)["error"]
            assert error["param"] == field


def states(llm, text):
    """Each token's state, found one prefix at a time."""
    params = SamplingParams(temperature=0, max_tokens=1, pooling="last", max_draft=0)
    ids = llm.encode(text)
    found = []
    for stop in range(1, len(ids) + 1):
        handle = llm.submit(ids[:stop], params)
        handle.wait()
        found.append(handle.runs[0].states()[0])
    (top,) = llm.model.topk(found[-1][None], 1).ids[0]
    plain = llm.generate([ids], SamplingParams(temperature=0, max_tokens=1))[0].outputs[0]
    assert (int(top),) == plain.token_ids  # the head agrees that this is what it reads
    return np.stack(found)
