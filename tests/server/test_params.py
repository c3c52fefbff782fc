"""What a request leaves out has one meaning on every route."""

from __future__ import annotations

import re

import httpx
import pytest

from forerun.core import params
from forerun.core.errors import CapacityError
from forerun.core.params import SamplingParams
from forerun.llm import LLM
from tests.server.conftest import post, running

SAID = [{"role": "user", "content": "One two three one two three"}]
LONG = "word " * 440


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_known_roles_are_taken(url, role):
    body = {"messages": [{"role": role, "content": "a"}, *SAID], "max_tokens": 1}
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_minus_one_is_until_the_end_of_the_context_everywhere(url, llm):
    assert SamplingParams(max_tokens=-1) == SamplingParams(max_tokens=None)
    open_end = {"ignore_eos": True, "temperature": 0}
    prompt, long = "word " * 480, [{"role": "user", "content": LONG}]
    for path, body, field in (
        ("/v1/completions", {"prompt": prompt, "max_tokens": -1}, "completion_tokens"),
        ("/v1/completions", {"prompt": prompt, "n_predict": -1}, "completion_tokens"),
        ("/v1/chat/completions", {"messages": long, "max_tokens": -1}, "completion_tokens"),
        ("/v1/responses", {"input": LONG, "max_output_tokens": -1}, "output_tokens"),
        ("/v1/messages", {"messages": long, "max_tokens": -1}, "output_tokens"),
    ):
        answer = httpx.post(url + path, json=body | open_end, timeout=60)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        num_prompt = sum(
            usage.get(name, 0)
            for name in ("prompt_tokens", "input_tokens", "cache_read_input_tokens")
        )
        assert usage[field] + num_prompt == llm.max_len


def test_an_answer_without_max_tokens_ends_where_the_context_does(url, llm):
    body = {"messages": [{"role": "user", "content": LONG}], "ignore_eos": True, "temperature": 0}
    found = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    assert found["usage"]["total_tokens"] == llm.max_len
    assert found["choices"][0]["finish_reason"] == "length"
    found = httpx.post(f"{url}/v1/chat/completions", json=body | {"max_tokens": 12}).json()
    assert found["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("route", "count", "texts"),
    [
        ("/v1/completions", "n", lambda found: [one["text"] for one in found["choices"]]),
        ("/completion", "n_cmpl", lambda found: [one["content"] for one in found]),
    ],
)
def test_a_seed_fixes_each_completion_on_every_route(url, llm, route, count, texts):
    """The first of three is that of one, and the offline one; a second prompt begins anew."""
    params = SamplingParams(seed=7, max_tokens=12, n=3)
    offline = [one.text for one in llm.generate("One two three", params)[0].outputs]
    body = {"prompt": "One two three", "seed": 7, "temperature": 1, "max_tokens": 12, "top_p": 1}
    assert len({*offline}) == 3
    assert texts(post(url, route, body | {count: 3})) == offline
    both = post(url, route, body | {"prompt": ["One two three"] * 2})
    assert texts(both) == offline[:1] * 2
    plain = post(url, route, body | {count: 3, "max_draft": 0})
    assert texts(plain) == offline


def test_a_seed_of_minus_one_is_none(url):
    body = {"prompt": "One two three", "seed": -1, "temperature": 1.5, "n_predict": 4}
    drawn = {post(url, "/completion", body)["generation_settings"]["seed"] for _ in range(3)}
    assert len(drawn) == 3


def test_a_request_that_bans_every_token_is_an_error_and_the_next_one_is_answered(tiny_gguf):
    llm = LLM(str(tiny_gguf), max_num_seqs=1)
    with running(lambda: llm) as (url, _):
        every = [*range(llm.model.config.vocab_size)]
        body = {"model": "tiny", "prompt": [1, 2], "max_tokens": 4}
        for more in ({"temperature": 0}, {"temperature": 1, "seed": 3}):
            lost = httpx.post(
                f"{url}/v1/completions",
                json=body | more | {"stop_token_ids": every, "min_tokens": 2},
            )
            assert lost.status_code == 400, lost.text
            assert "every token is banned" in lost.json()["error"]["message"]
            assert httpx.post(f"{url}/v1/completions", json=body | more).status_code == 200


def test_a_high_temperature_is_noted_once(caplog):
    params._note_hot.cache_clear()
    SamplingParams(temperature=2)
    assert not caplog.records
    SamplingParams(temperature=2.5)
    SamplingParams(temperature=3)
    assert [one.getMessage()[:19] for one in caplog.records] == ["temperature above 2"]


def test_the_newer_name_of_two_holds(url):
    both = {"prompt": "One two", "max_tokens": 1, "max_completion_tokens": 3, "ignore_eos": True}
    for body in (both, dict(reversed(both.items()))):
        assert post(url, "/v1/completions", body)["usage"]["completion_tokens"] == 3
    assert "differ" in told(url, both | {"n_predict": 5, "max_completion_tokens": None})


def test_a_temperature_below_0_is_greedy(url):
    body = {"prompt": "One two three", "max_tokens": 4}
    texts = {
        post(url, "/v1/completions", body | {"temperature": value})["choices"][0]["text"]
        for value in (0, -1, -0.5)
    }
    assert len(texts) == 1
    text = b'{"prompt": "a", "temperature": 1e999}'
    head = {"content-type": "application/json"}
    answer = httpx.post(f"{url}/v1/completions", content=text, headers=head)
    assert answer.json()["error"]["message"] == "temperature must be from 0 to 100"


def test_a_raw_prompt_has_the_limit_that_is_asked_for(url):
    options = {"max_tokens": 3, "ignore_eos": True}
    body = {"raw": True, "prompt": "One two", "stream": False, "options": options}
    assert post(url, "/api/generate", body)["eval_count"] == 3


def test_a_budget_tells_its_own_number_of_sequences(default_model):
    given = {"model": str(default_model), "drafter": "none", "is_server": True, "max_num_seqs": 256}
    with pytest.raises(CapacityError) as error:
        LLM(**given, memory_budget="100MiB")
    least = re.search(r"smallest that works is (\d+)MiB", str(error.value))
    with (
        LLM(**given, memory_budget=f"{int(least[1]) + 4}MiB") as llm,
        running(lambda: llm) as (url, service),
    ):
        count = len(httpx.get(f"{url}/slots").json())
        assert count < llm.config.max_num_seqs
        assert httpx.get(f"{url}/props").json()["total_slots"] == count == service.num_slots


def told(url: str, body: dict) -> str:
    return post(url, "/v1/completions", body, 400)["error"]["message"]


def test_tokens_that_are_allowed_and_words_that_are_not_hold_on_every_route(url, llm):
    asked = {"temperature": 0, "max_tokens": 8, "return_token_ids": True, "ignore_eos": True}
    messages = {"messages": SAID}
    for path, body in (("completions", {"prompt": "One two"}), ("chat/completions", messages)):
        route = f"/v1/{path}"
        free = post(url, route, body | asked)["choices"][0]["token_ids"]
        allowed = post(url, route, body | asked | {"allowed_token_ids": [20, 21]})["choices"][0]
        assert {*allowed["token_ids"]} <= {20, 21}
        word = llm.tokenizer.text_of(free[0]).strip()
        if word:
            kept = post(url, route, body | asked | {"bad_words": [word]})["choices"][0]
            assert kept["token_ids"][0] != free[0]
