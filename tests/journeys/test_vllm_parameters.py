"""What vLLM's calls take: every parameter with its default, and mistakes said in one line."""

from __future__ import annotations

from enum import Enum

import pytest

from forerun import RequestError, SamplingParams
from tests.journeys.conftest import GREEDY, PROMPTS, QUESTION, texts


class RequestOutputKind(Enum):
    """vLLM's."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


SIGNATURE = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p"), 0.0),
    **dict.fromkeys(("n", "repetition_penalty", "temperature", "top_p"), 1),
    **dict.fromkeys(("top_k", "min_tokens", "output_text_buffer_length"), 0),
    **dict.fromkeys(("seed", "stop", "stop_token_ids", "logprobs", "prompt_logprobs"), None),
    **dict.fromkeys(("prompt_logprob_token_ids", "prompt_logprob_start"), None),
    **dict.fromkeys(("logprob_token_ids", "stream_interval", "structured_outputs"), None),
    **dict.fromkeys(("logit_bias", "allowed_token_ids", "extra_args", "bad_words"), None),
    **dict.fromkeys(("skip_reading_prefix_cache", "thinking_token_budget"), None),
    **dict.fromkeys(("repetition_detection", "trace_decode_token_ids"), None),
    **dict.fromkeys(("ignore_eos", "flat_logprobs", "include_stop_str_in_output"), False),
    **dict.fromkeys(("detokenize", "skip_special_tokens", "spaces_between_special_tokens"), True),
    "max_tokens": 16,
    "output_kind": RequestOutputKind.CUMULATIVE,
    "routed_experts_prompt_start": 0,
    "skip_clone": False,
}
"""The parameters of vLLM's SamplingParams and their defaults, as its main branch had them in 2026."""
OLDER = {
    "best_of": 1,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "guided_decoding": None,
    "logits_processors": None,
    "truncate_prompt_tokens": None,
}
"""Those that earlier versions had."""
NEUTRAL = SIGNATURE | OLDER


def test_every_parameter_of_vllm_is_taken_with_its_default() -> None:
    assert SamplingParams(**NEUTRAL) == SamplingParams()
    for name in NEUTRAL:
        SamplingParams(**{name: NEUTRAL[name]})


def test_arguments_that_ask_for_nothing_are_accepted(smollm2) -> None:
    params = SamplingParams(**NEUTRAL | {"temperature": 0, "max_tokens": 12})
    assert params == GREEDY
    outputs = smollm2.generate(
        PROMPTS[:1], params, use_tqdm=False, lora_request=None, priority=None
    )
    assert texts(outputs) == texts(smollm2.generate(PROMPTS[:1], GREEDY))
    smollm2.chat(QUESTION, GREEDY, chat_template_content_format="auto", lora_request=None)


MISTAKES = [
    (lambda llm: SamplingParams(best_of=4), "best_of=4 is not supported"),
    (lambda llm: SamplingParams(output_kind="NONE"), "output_kind must be CUMULATIVE, DELTA or"),
    (lambda llm: SamplingParams(bad_words=[""]), r"bad_words must be at most 1024 words"),
    (lambda llm: SamplingParams(temprature=1), "'temprature': did you mean 'temperature'"),
    (lambda llm: SamplingParams(max_new_tokens=1), "did you mean 'max_tokens'"),
    (lambda llm: llm.generate("x", lora_request="a"), "lora_request='a' is not supported"),
    (lambda llm: llm.generate("x", sampling_param=GREEDY), "did you mean 'sampling_params'"),
    (
        lambda llm: llm.generate("x", max_tokens=4),
        r"max_tokens is a sampling parameter: give SamplingParams\(max_tokens=...\)",
    ),
    (lambda llm: llm.generate("x", {"temperature": 0}), "must be a SamplingParams or a list"),
    (lambda llm: llm.generate(["x", "y"], [GREEDY]), "2 prompts but 1 sampling params"),
    (lambda llm: llm.generate({"promt": "x"}), "'promt': did you mean 'prompt'"),
    (lambda llm: llm.generate({"prompt": "x", "multi_modal_data": {}}), "'multi_modal_data'"),
    (lambda llm: llm.generate(None), "a prompt is text, token ids, chat messages or"),
    (lambda llm: llm.chat(QUESTION, tols=[]), "'tols': did you mean 'tools'"),
    (lambda llm: llm.chat("hi"), "a conversation is a list"),
    (lambda llm: llm.stream("x", use_tqd=1), "unknown argument 'use_tqd'"),
    (
        lambda llm: llm.chat(QUESTION, chat_template_kwargs={"enable_thinking": False}),
        "unknown variable of the chat template 'enable_thinking'",
    ),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[text for _, text in MISTAKES])
def test_what_cannot_be_done_is_said(smollm2, call, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        call(smollm2)
    assert "\n" not in str(caught.value)
    assert not smollm2.engine.has_work


def test_changed_parameters_are_checked_and_leave_the_defaults_alone(smollm2) -> None:
    params = smollm2.get_default_sampling_params()
    assert params == smollm2.default_params() == SamplingParams(temperature=0)
    params.temperature = -1
    with pytest.raises(RequestError, match="temperature must be from 0"):
        smollm2.generate("x", params)
    assert smollm2.default_params() == SamplingParams(temperature=0)
