"""OpenAI's client against the server: the answers are the offline ones, token for token, with drafting on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import openai
import pytest

from forerun.core.params import SamplingParams

QUESTION = [{"role": "user", "content": "Write a list of ten animals. Then write the list again."}]
IDS = {"return_token_ids": True}
SETTINGS = {
    "sampled": ({"temperature": 0.9, "seed": 3}, {}),
    "filtered": ({"temperature": 1.1, "top_p": 0.9, "seed": 4}, {"top_k": 40, "min_p": 0.05}),
    "penalised": (
        {"temperature": 0.7, "frequency_penalty": 0.3, "presence_penalty": 0.1, "seed": 5},
        {"repetition_penalty": 1.2},
    ),
    "biased": ({"temperature": 0, "logit_bias": {"260": 4}}, {"min_tokens": 20}),
    "several": ({"temperature": 1.0, "n": 3, "seed": 6}, {}),
    "stopped": ({"temperature": 0, "stop": ["list"]}, {"include_stop_str_in_output": True}),
    "to the end": ({"temperature": 0}, {"ignore_eos": True, "stop_token_ids": [9]}),
}


def offline(llm, prompt, own, extra, max_tokens):
    bias = {int(token): value for token, value in own.get("logit_bias", {}).items()}
    asked = {**own, **extra, "logit_bias": bias, "max_tokens": max_tokens}
    params = replace(llm.default_params(), **asked)  # what a request leaves out is the model's own
    return llm.generate([prompt], params)[0]


@pytest.mark.parametrize(("own", "extra"), SETTINGS.values(), ids=SETTINGS)
def test_chat_answers_are_the_offline_ones(client, llm, own, extra):
    expected = offline(llm, QUESTION, own, extra, 24)
    answer = client.chat.completions.create(
        model="tiny", messages=QUESTION, max_completion_tokens=24, extra_body=extra | IDS, **own
    )
    assert answer.prompt_token_ids == expected.prompt_token_ids
    assert [one.token_ids for one in answer.choices] == [
        [*one.token_ids] for one in expected.outputs
    ]
    assert [one.message.content for one in answer.choices] == [one.text for one in expected.outputs]
    assert [one.finish_reason for one in answer.choices] == [
        one.finish_reason.value for one in expected.outputs
    ]
    assert [one.stop_reason for one in answer.choices] == [
        one.stop_reason for one in expected.outputs
    ]
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == sum(len(one.token_ids) for one in expected.outputs)
    assert answer.timings["draft_n"] > 0


def test_greedy_drafts_are_accepted_and_rejected(client):
    answer = client.chat.completions.create(
        model="tiny", messages=QUESTION, max_tokens=32, temperature=0
    )
    found = answer.timings
    assert 0 < found["draft_n_accepted"] < found["draft_n"]
    assert found["tokens_per_pass"] > 1
    assert found["predicted_n"] == answer.usage.completion_tokens
    assert found["cache_n"] + found["prompt_n"] == answer.usage.prompt_tokens
    assert found["cache_disk_n"] == 0
    assert found["predicted_per_second"] > 0


def test_an_answer_goes_on_where_it_was_cut(client):
    def said(messages, max_tokens, **extra):
        answer = client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=max_tokens, temperature=0, extra_body=extra
        )
        return answer.choices[0].message.content, answer.timings

    whole, found = said(QUESTION, 48)
    begun, _ = said(QUESTION, 16)
    cut = [*QUESTION, {"role": "assistant", "content": begun}]
    rest, timings = said(cut, 32, continue_final_message=True, add_generation_prompt=False)
    assert begun + rest == whole
    for one in (found, timings):
        assert 0 < one["draft_n_accepted"] < one["draft_n"]
    with pytest.raises(openai.BadRequestError, match="needs a last message of the assistant"):
        said(QUESTION, 4, continue_final_message=True)


def test_streams_of_several_completions_add_up(client, llm):
    own = {"temperature": 0.8, "seed": 1, "n": 2}
    expected = offline(llm, QUESTION, own, {}, 24)
    stream = client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=IDS,
        **own,
    )
    *chunks, last = stream
    for i, output in enumerate(expected.outputs):
        parts = [one for chunk in chunks for one in chunk.choices if one.index == i]
        assert "".join(part.delta.content or "" for part in parts) == output.text
        assert [token for part in parts for token in part.token_ids] == [*output.token_ids]
        assert parts[0].delta.role == "assistant"
        assert all(part.delta.role is None for part in parts[1:])
        assert [part.finish_reason for part in parts][-1] == output.finish_reason.value
        assert all(part.finish_reason is None for part in parts[:-1])
    assert last.choices == []
    assert last.usage.completion_tokens == sum(len(one.token_ids) for one in expected.outputs)
    assert last.timings["draft_n"] > 0
    assert {chunk.id for chunk in chunks} == {last.id}


def test_several_prompts_of_text_and_ids_in_one_request(client, llm):
    prompts = ["One two three one two three one", "The sea the sky the sea the"]
    expected = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8))
    ids = [llm.tokenizer.encode(prompt) for prompt in prompts]
    for given in (prompts, ids):
        answer = client.completions.create(model="tiny", prompt=given, max_tokens=8, temperature=0)
        assert [one.text for one in answer.choices] == [one.outputs[0].text for one in expected]
        assert [one.index for one in answer.choices] == [0, 1]
    alone = client.completions.create(model="tiny", prompt=ids[0], max_tokens=8, temperature=0)
    assert alone.choices[0].text == expected[0].outputs[0].text
    assert alone.usage.prompt_tokens == len(ids[0])


def test_log_probabilities_are_the_offline_ones(client, llm):
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=2)
    (expected,) = llm.generate([QUESTION], params)[0].outputs
    own = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    chat = client.chat.completions.create(messages=QUESTION, logprobs=True, top_logprobs=2, **own)
    content = chat.choices[0].logprobs.content
    for token, entry, found in zip(expected.token_ids, content, expected.logprobs, strict=True):
        assert entry.logprob == pytest.approx(found[token].logprob)
        assert entry.token == found[token].decoded_token
        assert bytes(entry.bytes).decode() == entry.token
        assert [top.token for top in entry.top_logprobs] == [
            each.decoded_token for each in found.values() if each.rank <= 2
        ]
    streamed = client.chat.completions.create(
        messages=QUESTION, logprobs=True, top_logprobs=2, stream=True, **own
    )
    parts = [one.logprobs for chunk in streamed for one in chunk.choices]
    together = [entry for part in parts if part is not None for entry in part.content]
    assert together == content


def test_echo_scores_the_prompt_too(client, llm):
    prompt = "The capital of France is"
    own = {"model": "tiny", "prompt": prompt, "max_tokens": 3, "temperature": 0, "echo": True}
    (choice,) = client.completions.create(logprobs=1, **own).choices
    assert choice.text.startswith(prompt)
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text
    assert found.token_logprobs[0] is None
    assert all(value <= 0 for value in found.token_logprobs[1:])
    assert [
        choice.text[start:][: len(token)]
        for start, token in zip(found.text_offset, found.tokens, strict=True)
    ] == found.tokens
    stream = client.completions.create(stream=True, **own)
    assert "".join(chunk.choices[0].text for chunk in stream) == choice.text


def test_requests_at_once_say_what_they_say_alone(url, llm):
    params = SamplingParams(temperature=0, max_tokens=16)
    prompts = [f"Count from {i}: {i}, {i + 1}, {i + 2}, {i}, {i + 1}," for i in range(10)]
    expected = [out.outputs[0].text for out in llm.generate(prompts, params)]

    async def all_at_once():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as made:

            async def ask(prompt, stream):
                answer = await made.completions.create(
                    model="tiny", prompt=prompt, max_tokens=16, temperature=0, stream=stream
                )
                if not stream:
                    return answer.choices[0].text
                return "".join([chunk.choices[0].text async for chunk in answer])

            return await asyncio.gather(*(ask(p, i % 2 == 0) for i, p in enumerate(prompts)))

    assert asyncio.run(all_at_once()) == expected


def test_the_clients_errors_are_its_own_kinds(client):
    own = {"model": "tiny", "messages": QUESTION}
    with pytest.raises(openai.BadRequestError, match="temperature must be from 0 to 100") as error:
        client.chat.completions.create(temperature=200, **own)
    assert error.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="not served here") as error:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512") as error:
        client.completions.create(model="tiny", prompt="word " * 600)
    assert error.value.code == "context_length_exceeded"
    assert client.models.list().data[0].id == "tiny"
    assert client.models.retrieve("tiny").max_model_len == 512
