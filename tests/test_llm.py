"""The Python interface on the default model: everything works with drafting on, and says what plain decoding says."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from forerun import LLM, CapacityError, ConfigError, RequestError
from forerun.core.params import SamplingParams
from forerun.llm import Prompt

QUESTION = [{"role": "user", "content": "Repeat: red, green, blue, red, green, blue. Go on."}]
GREEDY = SamplingParams(temperature=0, max_tokens=32)


@pytest.fixture(scope="module")
def drafted(default_model) -> LLM:
    """Always drafts in full: what the controller grants depends on the machine."""
    sizes = {"max_model_len": 512, "max_num_seqs": 4}
    return LLM(str(default_model), drafter="suffix", controller=False, **sizes)


@pytest.fixture(scope="module")
def plain(drafted) -> LLM:
    return drafted.with_drafter("none")


def answers(llm: LLM, prompt: Prompt, params: SamplingParams) -> list[tuple[int, ...]]:
    return [out.token_ids for out in llm.generate([prompt], params)[0].outputs]


SETTINGS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.9, "seed": 3},
    "filtered": {"temperature": 1.1, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 4},
    "penalised": {
        "temperature": 0.7,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "seed": 5,
    },
    "biased": {"temperature": 0, "logit_bias": {260: 4.0}, "min_tokens": 20},
    "several": {"temperature": 1.0, "n": 3, "seed": 6},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_gives_the_plain_answer(drafted, plain, settings):
    params = SamplingParams(max_tokens=32, **settings)
    ours = drafted.generate([QUESTION], params)[0].outputs
    assert [out.token_ids for out in ours] == answers(plain, QUESTION, params)
    assert sum(out.stats.drafted for out in ours) > 0


def test_greedy_drafts_are_accepted_and_rejected(drafted):
    """On an engine of its own: what earlier requests were answered would be guessed, too."""
    llm = drafted.with_drafter("suffix")
    (out,) = llm.generate(["One two three one two three one"], GREEDY)[0].outputs
    assert out.stats.accepted > 0
    assert out.stats.rejected > 0
    assert out.stats.tau > 1


def test_streaming_adds_up_to_the_answer(drafted):
    whole = drafted.generate([QUESTION], GREEDY)[0].outputs[0]
    events = list(drafted.stream(QUESTION, GREEDY))
    assert "".join(event.text for event in events) == whole.text
    assert tuple(token for event in events for token in event.token_ids) == whole.token_ids
    assert events[-1].finish_reason is whole.finish_reason
    assert any(piece.from_draft for event in events for piece in event.pieces)
    assert not all(piece.from_draft for event in events for piece in event.pieces)


def test_logprobs_come_with_drafting_and_are_the_plain_ones(drafted, plain):
    params = SamplingParams(temperature=0, max_tokens=16, logprobs=2)
    (ours,) = drafted.generate([QUESTION], params)[0].outputs
    assert ours.logprobs == plain.generate([QUESTION], params)[0].outputs[0].logprobs
    for token, found in zip(ours.token_ids, ours.logprobs, strict=True):
        assert [entry.rank for entry in found.values()] == [1, 2]
        assert next(iter(found)) == token
        assert found[token].logprob <= 0
        assert found[token].decoded_token == drafted.tokenizer.text_of(token)
    assert ours.cumulative_logprob == sum(
        found[t].logprob for t, found in zip(ours.token_ids, ours.logprobs, strict=True)
    )


def test_a_second_turn_says_the_same_whether_rows_are_reused_or_not(drafted, default_model):
    first = drafted.chat(QUESTION, GREEDY)[0].outputs[0]
    follow_up = [
        *QUESTION,
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "Once more."},
    ]
    reused = drafted.chat(follow_up, GREEDY)[0].outputs[0].token_ids
    fresh = drafted.with_drafter("none")  # an engine of its own, with an empty cache
    assert reused == fresh.chat(follow_up, GREEDY)[0].outputs[0].token_ids


@pytest.mark.parametrize("drafter", ["prompt_lookup", "suffix"])
def test_real_weights_keep_the_row_law(default_model, drafter):
    llm = LLM(str(default_model), drafter=drafter, max_model_len=256, controller=False)
    params = SamplingParams(temperature=0, max_tokens=12)
    (ours,) = llm.generate([QUESTION], params)[0].outputs
    assert [ours.token_ids] == answers(llm.with_drafter("none"), QUESTION, params)
    assert ours.stats.drafted > 0


def test_mistakes_are_named(drafted, default_model):
    with pytest.raises(RequestError, match="2 prompts but 1 sampling"):
        drafted.generate(["a", "b"], [GREEDY])
    with pytest.raises(CapacityError, match="the context holds 512"):
        drafted.generate(["fine", "word " * 600], GREEDY)
    with pytest.raises(ConfigError, match="unknown option 'max_len': did you mean 'max_"):
        LLM(str(default_model), max_len=512)
    with pytest.raises(ConfigError, match="from 2 to the model's 8192, got 1000000"):
        LLM(str(default_model), max_model_len=10**6)
    with pytest.raises(RequestError, match="the prompt is empty"):
        drafted.generate([""], GREEDY)
    assert not drafted.engine.has_work


@pytest.mark.parametrize("ask", ["chat", "generate", "stream"])
@pytest.mark.parametrize("has_drafts", [False, True])
def test_stop_strings_count_behind_the_thought_of_a_chat(
    drafted, plain, ask: str, has_drafts: bool
) -> None:
    pytest.importorskip("llguidance")
    llm = copy.copy(drafted if has_drafts else plain)
    llm.tokenizer = copy.copy(llm.tokenizer)
    llm.tokenizer.use_chat_template("{{ messages[-1].content }}<think>")
    params = SamplingParams(
        temperature=0,
        max_tokens=64,
        stop=["stop"],
        structured_outputs={"regex": "we stop here</think>we go on and stop here"},
    )
    if ask == "stream":
        text = "".join(event.text for event in llm.stream(QUESTION, params))
    elif ask == "chat":
        text = llm.chat(QUESTION, params)[0].outputs[0].text
    else:
        text = llm.generate(QUESTION, params)[0].outputs[0].text
    assert text == "we stop here</think>we go on and "
    as_it_is = llm.generate("Repeat", params)[0].outputs[0].text
    assert as_it_is == "we "  # no chat: a text has no thought


def test_arrays_of_token_ids_are_prompts(plain) -> None:
    ids = plain.encode("one two")
    expected = answers(plain, ids, GREEDY)
    for prompt in (np.array(ids), np.array(ids, np.int32), tuple(np.array(ids))):
        assert answers(plain, prompt, GREEDY) == expected
    assert [one.outputs[0].token_ids for one in plain.generate(np.array(ids), GREEDY)] == expected
