"""What is too long is refused before it is encoded, and what is counted has a bound of its own."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from forerun.server import bodies, limits
from forerun.server.bodies import LARGE, READ_AT_ONCE, BodyQueue, to_object
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError
from forerun.server.http import PART_NBYTES, JsonResponse, to_json
from tests.server.conftest import post

WORDS = "The quick brown fox jumps over the lazy dog, 123 times. "


@pytest.mark.parametrize("text", [WORDS * 4000, "0" * 100_000, "\u4e2d" * 50_000, " " * 400_000])
def test_a_text_that_cannot_fit_is_not_encoded_whole(llm, monkeypatch, text):
    lengths = []
    encode = llm.tokenizer.encode
    monkeypatch.setattr(
        llm.tokenizer,
        "encode",
        lambda given, **more: lengths.append(len(given)) or encode(given, **more),
    )
    with pytest.raises(ApiError, match="more than"):
        limits.check_fits(text, llm.tokenizer, 100, 512, "prompt")
    assert all(length <= limits.HEAD * 100 for length in lengths)


@pytest.mark.parametrize("text", [WORDS * 7, "", " " * 5000, "a" * 300, "=" * 7000])
def test_a_text_that_fits_has_the_tokens_that_it_has(served, llm, text):
    limits.check_fits(text, llm.tokenizer, 100, 512, "prompt")
    found = served[1].read_text(text, "prompt")
    assert found.token_ids == llm.tokenizer.encode(text)
    assert found.text == text


def test_what_is_counted_may_be_longer_than_the_context_but_not_than_a_megabyte(url, llm):
    text = WORDS * 200
    expected = llm.tokenizer.encode(text, bos=False)
    assert post(url, "/tokenize", {"content": text})["tokens"] == expected
    assert len(expected) > llm.max_len
    said = {"messages": [{"role": "user", "content": "b" * 1_100_000}]}
    post(url, "/v1/messages/count_tokens", said, 400)


def test_commas_in_texts_are_no_values():
    config = ServerConfig(max_body_mb=0.4)
    text = 'a, "b\\", c, ' * 9000
    assert to_object(json.dumps({"prompt": text}).encode(), config) == {"prompt": text}
    for many in ([1] * 11_000, [","] * 11_000, [{"a": "\\"}] * 11_000, ['"'] * 11_000):
        with pytest.raises(ApiError, match="limit of 10000 values"):
            to_object(json.dumps({"prompt": many}).encode(), config)


ODD = {
    "a surrogate": ('"\\ud800"', "must be Unicode"),
    "the other half": ('"a\\uDFFFb"', "must be Unicode"),
    "halves in the wrong order": ('"\\udc00\\ud800"', "must be Unicode"),
    "an integer": ("1" + "0" * 400, "must be a number from -1.798e+308"),
    "a negative one": ("-1" + "0" * 309, "must be a number"),
    "an exponent": ("1e400", "must be a number"),
    "its longer form": ("1" + "0" * 250 + "e99", "must be a number"),
    "a fraction": ("-1.5E+0309", "must be a number"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"prompt": "a", "regex": %s}', "regex"),
        ('{"a": [1, {"b": [%s]}]}', "a.1.b.0"),
        ('{"logit_bias": {"5": %s}}', "logit_bias.5"),
    ],
)
def test_a_text_that_is_not_unicode_and_a_number_beyond_all_floats_are_named(body, param, name):
    text, words = ODD[name]
    with pytest.raises(ApiError) as found:
        to_object((body % text).encode(), ServerConfig())
    assert found.value.status == 400
    assert found.value.param == param
    assert found.value.message.startswith(param)
    assert words in found.value.message
    assert len(found.value.message) < 300


def test_a_name_of_a_field_must_be_unicode_too():
    for body, param in (('{"a": {"\\ud800": 1}}', "a"), ('{"\\ud800": 1}', None)):
        with pytest.raises(ApiError, match="must be Unicode") as found:
            to_object(body.encode(), ServerConfig())
        assert found.value.param == param


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", '"\xff"', '"\xed\xa0\x80"'])
def test_what_json_does_not_have_is_refused(text):
    body = f'{{"prompt": {text}}}'.encode("latin-1")
    with pytest.raises(ApiError, match="the body is not JSON"):
        to_object(body, ServerConfig())


def test_ordinary_texts_and_numbers_are_taken():
    values = ["\U0001f600\u4e2d", "\ud7ff\ue000", 2**64, 10**300, 1e308, -1e308, 1e-400, "1e999"]
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        for ascii_only in (True, False):
            body = json.dumps({"a": values}, ensure_ascii=ascii_only).encode(encoding)
            assert to_object(body, ServerConfig()) == {"a": values}


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/v1/completions", '{"prompt": "a", "structured_outputs": {"regex": "\\ud800"}}', None),
        ("/v1/completions", '{"prompt": "a", "guided_grammar": "\\ud800"}', "guided_grammar"),
        ("/v1/completions", '{"prompt": "a", "guided_choice": ["\\ud800"]}', "guided_choice.0"),
        ("/completion", '{"prompt": "a", "logit_bias": {"5": 1%s}}' % ("0" * 400), "logit_bias.5"),
        ("/v1/messages", '{"messages": [], "max_tokens": 1e999}', None),
    ],
)
def test_they_are_400_over_http(url, route, body, param):
    head = {"content-type": "application/json"}
    answer = httpx.post(f"{url}{route}", content=body, headers=head, timeout=60)
    assert answer.status_code == 400
    assert param is None or answer.json()["error"]["param"] == param


def test_a_prediction_is_encoded_once_for_all_completions(url, llm, monkeypatch):
    seen = []
    encode = llm.tokenizer.encode
    monkeypatch.setattr(
        llm.tokenizer, "encode", lambda text, **more: seen.append(text) or encode(text, **more)
    )
    body = {"prompt": "One two three", "n": 4, "max_tokens": 4, "prediction": " four five six"}
    post(url, "/v1/completions", body)
    assert seen.count(" four five six") == 1


@pytest.mark.parametrize("length", [0, 1, 4096, 4097, 10_000])
def test_json_in_slices_is_the_same(length):
    rows = [{"id": i, "piece": f'\u4e2d"{i}'} for i in range(length)]
    few = [rows[i % 7] if i % 9 else "\ud800" for i in range(length)]
    document = {
        "count": length,
        "tokens": rows,
        "a \\ b": [*range(length)],
        "c": {"d": rows},
        "few": few,
    }
    expected = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    assert to_json(document) == expected.encode("utf-8", "backslashreplace")
    assert json.loads(to_json(rows)) == rows


def test_a_long_answer_is_sent_in_parts_and_others_run_between():
    parts, turns = [], 0

    async def send(message):
        parts.append((turns, message))

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run():
        other = asyncio.create_task(count())
        await JsonResponse("a" * 3 * PART_NBYTES)({"type": "http"}, None, send)
        other.cancel()

    asyncio.run(run())
    (_, head), *rest = parts
    sent = b"".join(one["body"] for _, one in rest)
    assert sent == b'"' + b"a" * 3 * PART_NBYTES + b'"'
    assert dict(head["headers"])[b"content-length"] == str(len(sent)).encode()
    assert [one["more_body"] for _, one in rest] == [True, True, True, False]
    assert [at for at, _ in rest] == sorted({at for at, _ in rest})


def test_few_large_bodies_are_received_at_once_and_slow_ones_stop_no_other(monkeypatch):
    most = running = 0

    async def read() -> int:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return 1

    async def forever() -> int:
        await asyncio.Event().wait()
        return 0

    async def all_of_them() -> None:
        queue = BodyQueue()
        found = await asyncio.gather(*(queue.receive(read, LARGE) for _ in range(20)))
        assert (sum(found), most) == (20, READ_AT_ONCE)
        monkeypatch.setattr(bodies, "READ_S", 0.05)
        slow = [asyncio.create_task(queue.receive(forever, LARGE)) for _ in range(9)]
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await queue.receive(read, LARGE) == 1
            assert await queue.receive(read, 10) == 1
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        async with asyncio.timeout(10):
            assert await queue.receive(read, LARGE) == 1

    asyncio.run(all_of_them())
