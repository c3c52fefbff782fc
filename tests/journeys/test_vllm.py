"""A vLLM user's first hour: their scripts run with another import line and another model's name."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from operator import mul

import pytest

from forerun import RequestError, SamplingParams
from tests.journeys.conftest import GREEDY, PROMPTS, QUESTION, Script, texts

BATCH = """
from vllm import LLM, SamplingParams

prompts = ["Hello, my name is", "The capital of France is", "The future of AI is"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)

def main():
    llm = LLM(model="facebook/opt-125m")
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")

if __name__ == "__main__":
    main()
"""


def test_the_offline_quickstart(run_vllm: Script) -> None:
    lines = run_vllm(BATCH).splitlines()
    prompts = PROMPTS[:1] + PROMPTS[2:]
    assert [line.partition(", Generated")[0] for line in lines] == [
        f"Prompt: {p!r}" for p in prompts
    ]


CHAT = """
from vllm import LLM, RequestOutput, SamplingParams

llm = LLM(model="HuggingFaceTB/SmolLM2-135M-Instruct")
sampling_params = llm.get_default_sampling_params()
sampling_params.max_tokens = 24
sampling_params.temperature = 0.0

def print_outputs(outputs: list[RequestOutput]):
    for output in outputs:
        print(f"Prompt: {output.prompt!r}")
        print(f"Generated text: {output.outputs[0].text!r}")

conversation = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I assist you today?"},
    {"role": "user", "content": "What is the capital of France?"},
]
print_outputs(llm.chat(conversation, sampling_params, use_tqdm=False))
print_outputs(llm.chat([conversation for _ in range(2)], sampling_params, use_tqdm=True))

"""


def test_the_chat_examples(run_vllm: Script) -> None:
    lines = run_vllm(CHAT).splitlines()
    assert len(lines) == 6
    assert len({*lines}) == 2, "one conversation and a list of it: the same answer"
    assert "What is the capital of France?<|im_end|>" in lines[0]
    assert "Paris" in lines[1]


METRICS = """
from vllm import LLM, SamplingParams
from vllm.v1.metrics.reader import Counter, Vector

llm = LLM(
    model="facebook/opt-125m",
    speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
    max_model_len=512,
)
prompts = [{"prompt_token_ids": llm.get_tokenizer().encode("one two three " * 8).ids}]
outputs = llm.generate(prompts, sampling_params=SamplingParams(temperature=0, max_tokens=24))
num_drafts = num_accepted = 0
acceptance_counts = [0] * 3
for metric in llm.get_metrics():
    if metric.name == "vllm:spec_decode_num_drafts":
        assert isinstance(metric, Counter)
        num_drafts += metric.value
    elif metric.name == "vllm:spec_decode_num_accepted_tokens":
        num_accepted += metric.value
    elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
        assert isinstance(metric, Vector)
        for pos in range(len(metric.values)):
            acceptance_counts[pos] += metric.values[pos]
print(f"{1 + num_accepted / num_drafts:.2f}", num_accepted, sum(acceptance_counts))
"""


def test_the_example_that_reads_acceptance(run_vllm: Script) -> None:
    length, accepted, by_position = run_vllm(METRICS).split()
    assert float(length) > 1.5
    assert 0 < int(accepted) == int(by_position)


def test_an_output_has_what_vllms_has(smollm2) -> None:
    first, second = smollm2.generate(PROMPTS[:2], sampling_params=GREEDY)
    assert first.request_id != second.request_id
    assert [first.prompt, second.prompt] == PROMPTS[:2]
    assert first.prompt_token_ids == smollm2.get_tokenizer().encode(PROMPTS[0]).ids
    assert first.finished is True
    assert first.prompt_logprobs is None
    (completion,) = first.outputs
    assert completion.index == 0
    assert len(completion.token_ids) == 12
    assert completion.finish_reason == "length"
    assert completion.logprobs is completion.cumulative_logprob is completion.stop_reason is None


def test_parameters_come_by_position_by_keyword_and_in_a_list(smollm2) -> None:
    prompts = PROMPTS[:2]
    expected = texts(smollm2.generate(prompts, GREEDY))
    short = SamplingParams(temperature=0, max_tokens=3)
    assert texts(smollm2.generate(prompts=prompts, sampling_params=GREEDY)) == expected
    mixed = smollm2.generate(prompts, [GREEDY, short])
    assert texts(mixed)[0] == expected[0]
    assert len(mixed[1].outputs[0].token_ids) == 3


def test_every_way_to_write_a_prompt_is_the_same_prompt(smollm2) -> None:
    text = PROMPTS[2]
    ids = smollm2.get_tokenizer().encode(text).ids
    (expected,) = texts(smollm2.generate(text, GREEDY))
    ways = [[text], ids, [ids], {"prompt": text}, {"prompt_token_ids": ids}]
    ways += [[{"prompt": text}], [{"prompt_token_ids": ids}], {"prompt": text, "cache_salt": None}]
    for way in ways:
        assert texts(smollm2.generate(way, GREEDY)) == [expected]
    assert texts(smollm2.generate([text, ids, {"prompt": text}], GREEDY)) == [expected] * 3
    assert smollm2.generate([]) == []


def test_an_answer_has_at_most_16_tokens_unless_asked(smollm2) -> None:
    (default,) = smollm2.generate("One two three four five six seven")
    (plain,) = smollm2.generate("One two three", SamplingParams(seed=1, ignore_eos=True))
    assert len(default.outputs[0].token_ids) == len(plain.outputs[0].token_ids) == 16
    whole = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    (long,) = smollm2.generate(smollm2.encode("One two three") * 330, whole)
    assert len(long.prompt_token_ids) + len(long.outputs[0].token_ids) == smollm2.max_len


def test_stops_are_none_or_a_string_or_a_list_and_can_be_kept(smollm2) -> None:
    def answer(**stops: object) -> object:
        params = SamplingParams(temperature=0, max_tokens=12, **stops)
        return smollm2.generate(PROMPTS[2], params)[0].outputs[0]

    whole = answer(stop=None)
    word = whole.text.split()[2]
    for stop in (word, [word]):
        cut = answer(stop=stop)
        assert cut.text == whole.text[: whole.text.index(word)]
        assert (cut.finish_reason, cut.stop_reason) == ("stop", word)
    kept = answer(stop=word, include_stop_str_in_output=True)
    assert kept.text == whole.text[: whole.text.index(word) + len(word)]
    by_id = answer(stop_token_ids=[whole.token_ids[4]])
    assert by_id.token_ids == whole.token_ids[:5]
    assert by_id.stop_reason == whole.token_ids[4]


def test_special_tokens_are_shown_on_request(smollm2) -> None:
    end = smollm2.tokenizer.eos_id
    settings = {"temperature": 0, "logit_bias": {end: 100}, "include_stop_str_in_output": True}
    (hidden,) = smollm2.chat(QUESTION, SamplingParams(**settings))
    (shown,) = smollm2.chat(QUESTION, SamplingParams(**settings, skip_special_tokens=False))
    assert [hidden.outputs[0].text, shown.outputs[0].text] == ["", "<|im_end|>"]
    (silent,) = smollm2.generate("x", SamplingParams(temperature=0, detokenize=False))
    assert silent.outputs[0].text == ""
    assert len(silent.outputs[0].token_ids) == 16


def test_log_probabilities_are_read_as_in_vllm(smollm2) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=2)
    (completion,) = smollm2.generate(PROMPTS[2], params)[0].outputs
    for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        assert entry[token].rank == 1
        assert entry[token].decoded_token == smollm2.get_tokenizer().decode([token])
        assert len(entry) == 2
        assert entry[token].logprob == max(each.logprob for each in entry.values()) <= 0


@pytest.mark.parametrize("n", [1, 2])
def test_a_prompts_log_probabilities_are_those_of_generating_it(smollm2, n: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=2)
    written = smollm2.generate(PROMPTS[2], params)[0]
    ids = [*written.prompt_token_ids, *written.outputs[0].token_ids]
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2, n=n)
    for _ in range(2):  # the second time the prompt is in the cache
        read = smollm2.generate({"prompt_token_ids": ids}, asked)[0]
        assert len(read.prompt_logprobs) == len(ids)
        assert read.prompt_logprobs[0] is None
        assert read.prompt_logprobs[-8:] == written.outputs[0].logprobs
        assert all(i in entry for i, entry in zip(ids[1:], read.prompt_logprobs[1:], strict=True))


def test_a_long_prompt_is_scored_as_in_one_piece(smollm2) -> None:
    ids = smollm2.encode("The sea, the sky, the sun. " * 60)
    assert len(ids) > 2 * smollm2.config.prefill_chunk > 64, "several chunks and blocks"
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    long, short = smollm2.generate([ids, ids[:40]], asked)
    assert long.prompt_logprobs[:40] == short.prompt_logprobs
    assert [*long.prompt_logprobs[-1]] == [ids[-1]]


def test_metrics_count_what_was_asked_and_answered(smollm2) -> None:
    llm = smollm2.with_drafter("none")

    def value(name: str, **labels: str) -> float:
        found = [m for m in llm.get_metrics() if m.name == f"forerun:{name}"]
        return sum(m.value for m in found if labels.items() <= m.labels.items())

    outputs = llm.generate(PROMPTS, GREEDY)
    next(llm.stream("x", GREEDY))
    lengths = [len(smollm2.encode(text)) for text in (*PROMPTS, "x")]
    assert value("prompt_tokens") == sum(lengths)
    written = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert value("generation_tokens") == written + 1
    assert value("request_success", finished_reason="length") == 4
    assert value("num_requests_running") == value("num_requests_waiting") == 0
    llm.generate(PROMPTS[:1], GREEDY)
    assert value("prefix_cache_hits") == lengths[0] - 1, "the last token is always computed"


# Threads


def test_threads_may_stream_chat_and_show_progress_at_once(smollm2) -> None:
    (answer,) = texts(smollm2.chat(QUESTION, GREEDY))

    def stream() -> str:
        return "".join(event.text for event in smollm2.stream(QUESTION, GREEDY))

    def chat() -> str:
        return texts(smollm2.chat(QUESTION, GREEDY, use_tqdm=True))[0]

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(ask) for ask in (stream, chat, stream, chat)]
        assert [each.result(60) for each in found] == [answer] * 4


def test_streams_read_in_turns_say_what_they_say_alone(smollm2) -> None:
    alone = [smollm2.generate(prompt, GREEDY)[0].outputs[0].text for prompt in PROMPTS]
    streams = [smollm2.stream(prompt, GREEDY) for prompt in PROMPTS]
    heard = [""] * len(streams)
    for turn in zip_longest(*streams):
        for i, event in enumerate(turn):
            heard[i] += "" if event is None else event.text
    assert heard == alone


def test_a_batch_shows_its_progress_in_a_terminal_and_in_a_notebook(smollm2, monkeypatch, capsys):
    one = SamplingParams(temperature=0, max_tokens=1)

    def said(**settings: object) -> str:
        smollm2.generate(["a"] * 200, one, **settings)
        return capsys.readouterr().err

    assert said() == ""
    assert said(use_tqdm=True).endswith("\n")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "ipykernel", object())
        lines = said().split("\r")
        assert lines[-1].startswith("answered 200 of 200 (")
        assert lines[-1].endswith("\n"), "the last line stays in a saved notebook"
        assert said(use_tqdm=False) == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert "answered 200 of 200" in said()


def test_the_tokenizer_has_what_scripts_of_vllm_ask_it(smollm2) -> None:
    tokenizer = smollm2.get_tokenizer()
    text = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    assert texts(smollm2.generate(text, GREEDY)) == texts(smollm2.chat(QUESTION, GREEDY))
    ids = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)
    assert ids == smollm2.chat(QUESTION, GREEDY)[0].prompt_token_ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert "<|im_start|>" not in tokenizer.decode(ids, skip_special_tokens=True)
    assert tokenizer.vocab_size <= len(tokenizer) == smollm2.model.config.vocab_size
    assert tokenizer.eos_token_id == smollm2.tokenizer.eos_id
    assert tokenizer.convert_tokens_to_ids(tokenizer.eos_token) == tokenizer.eos_token_id


def test_texts_have_vectors_and_like_ones_score_higher(smollm2) -> None:
    texts_ = ["The cat sat on the mat.", "A cat is sitting on a mat.", "Stock prices fell."]
    for pooling in ("last", "mean"):
        vectors = [one.outputs.embedding for one in smollm2.embed(texts_, pooling=pooling)]
        assert all(sum(x * x for x in one) == pytest.approx(1, abs=1e-4) for one in vectors)
        near, far = (sum(map(mul, vectors[0], one)) for one in vectors[1:])
        assert near > far
    (one,) = smollm2.embed(texts_[0])
    assert repr(one.outputs) == f"EmbeddingOutput(hidden_size={len(one.outputs.embedding)})"
    assert one.prompt_token_ids == smollm2.encode(texts_[0])
    with pytest.raises(RequestError, match="'pool': did you mean 'pooling'"):
        smollm2.embed("a", pool="mean")


def test_an_llm_says_what_it_is_and_that_it_belongs_to_its_process(smollm2) -> None:
    assert f"drafter={smollm2.drafter_spec.text()!r}" in repr(smollm2)
    assert "max_model_len=" in repr(smollm2)
    with pytest.raises(TypeError, match="LLM belongs to its process: make one in each"):
        pickle.dumps(smollm2)
    with pytest.raises(TypeError, match=r"pickle llm.get_tokenizer\(\)"):
        pickle.dumps(smollm2.tokenizer)
    again = pickle.loads(pickle.dumps(smollm2.get_tokenizer()))
    assert again.encode("a b").ids == smollm2.get_tokenizer().encode("a b").ids


def test_texts_are_compared_one_with_many_or_as_many_with_each_other(smollm2) -> None:
    texts_ = ["A cat.", "A dog.", "Rain."]
    scores = [one.outputs.score for one in smollm2.score(texts_[0], texts_)]
    assert scores[0] == pytest.approx(1, abs=1e-3)
    assert scores[0] > max(scores[1:])
    assert len(smollm2.score(texts_, texts_[::-1])) == 3
    with pytest.raises(RequestError, match="2 and 3 texts cannot be compared"):
        smollm2.score(texts_[:2], texts_)
    assert smollm2.reset_prefix_cache()
    assert smollm2.generate("A cat.", GREEDY)[0].num_cached_tokens == 0
