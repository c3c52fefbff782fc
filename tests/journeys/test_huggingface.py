"""A Hugging Face user's first hour: arrays, tokenizers, messages and tools as they write them, and their folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from forerun import LLM, LoadError, RequestError, SamplingParams
from tests.model.tiny import hf_model
from tests.weights.test_hf import byte_level_encoder

GREEDY = SamplingParams(temperature=0, max_tokens=8)
TEXT = "The capital of France is"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
REFUSES = "{{ raise_exception('Such roles are\\nnot supported') }}"


def answers(llm: LLM, prompts: object) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]


def test_the_tokenizer_is_the_librarys(smollm2) -> None:
    tokenizer = smollm2.get_tokenizer()
    written = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert tokenizer.encode(written) == tokenizer(written)["input_ids"]
    assert tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=True) == ""
    assert len(tokenizer) == tokenizer.get_vocab_size() >= tokenizer.vocab_size
    assert tokenizer.encode(TEXT).ids == smollm2.encode(TEXT)
    (output,) = smollm2.generate(TEXT, GREEDY)
    assert answers(smollm2, tokenizer.encode(TEXT).ids) == answers(smollm2, TEXT)
    assert tokenizer.decode(output.outputs[0].token_ids) == output.outputs[0].text


NO_PROMPTS = [
    (5, "a prompt is text, token ids"),
    ([5.5], "token ids must be whole numbers, got 5.5"),
    (["x", None], "a prompt is text, token ids"),
    (b"x", "a prompt is text, token ids"),
    (np.zeros((2, 2), int), "token ids must be whole numbers"),
    ({"prompt": 3}, "must be text, got 3"),
    ({"input_ids": [1, 2]}, "unknown key of a prompt 'input_ids'"),
    ({"prompt_token_ids": None}, "needs 'prompt'"),
    ([[]], "the prompt is empty"),
]


@pytest.mark.parametrize(
    ("prompt", "message"), NO_PROMPTS, ids=[repr(p)[:30] for p, _ in NO_PROMPTS]
)
def test_what_is_no_prompt_is_said(smollm2, prompt: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        smollm2.generate(prompt)


@pytest.mark.parametrize("messages", [5, None, [], [5], [[5]], [[]], "x", {"role": "user"}])
def test_what_is_no_conversation_is_said(smollm2, messages: object) -> None:
    with pytest.raises(RequestError, match=r"a conversation is|the conversation is|message 0 is"):
        smollm2.chat(messages)


def test_messages_have_text_parts_or_nothing_as_content(smollm2) -> None:
    plain = [
        {"role": "system", "content": ""},
        {"role": "user", "content": "Hi\nthere"},
    ]
    parts = [
        {"role": "system", "content": None},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}],
        },
    ]
    first, second = smollm2.chat([plain, parts], GREEDY)
    assert first.prompt == second.prompt
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(RequestError, match="message 0 has a part of type 'image_url'"):
        smollm2.chat(picture, GREEDY)


def test_tools_and_their_calls_go_through_the_template(smollm2) -> None:
    call = {"function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain"},
    ]
    (output,) = smollm2.chat(messages, GREEDY, tools=[TOOL], chat_template=TOOL_TEMPLATE)
    assert output.prompt == ("get_weather\nuser: Weather?\nassistant: Oslo\ntool: rain\nassistant:")
    (output,) = smollm2.chat(messages, GREEDY, tools=[TOOL])  # told in the system message
    assert "get_weather" in output.prompt
    begun = [*messages[:1], {"role": "assistant", "content": "It is"}]
    (output,) = smollm2.chat(begun, GREEDY, continue_final_message=True)
    assert output.prompt.endswith("It is")
    with pytest.raises(RequestError, match="tools must be a list of objects"):
        smollm2.chat(messages, GREEDY, tools=["get_weather"], chat_template=TOOL_TEMPLATE)


def test_a_template_that_refuses_whatever_is_tried_says_so_in_one_line(smollm2) -> None:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    with pytest.raises(RequestError) as caught:
        smollm2.chat(messages, GREEDY, chat_template=REFUSES)
    assert str(caught.value) == (
        "the chat template refuses these messages: Such roles are not supported"
    )


# A folder with a model of two layers, as `save_pretrained` writes it


STATED = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    hf_model("llama", head_dim=16, vocab_size=268, eos_token_id=[264, 65]).save_pretrained(path)
    byte_level_encoder().save(str(path / "tokenizer.json"))
    settings = {"eos_token": "<|endoftext|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    write_settings(path, do_sample=True, **STATED, eos_token_id=[66, 67])
    return path


def write_settings(path: Path, **settings: object) -> None:
    (path / "generation_config.json").write_text(json.dumps(settings))


def test_a_folders_own_settings_hold_where_none_are_given(folder: Path) -> None:
    llm = LLM(str(folder), drafter="none")
    assert llm.default_params() == SamplingParams(**STATED)
    found = {llm.generate("hello")[0].outputs[0].token_ids for _ in range(8)}
    assert len(found) > 1, "it samples"
    assert answers(llm, "hello") == answers(llm, "hello"), "greedy if asked"


def test_every_end_token_of_a_folder_ends_an_answer(folder: Path) -> None:
    llm = LLM(str(folder), drafter="none")
    for last in (264, 65, 66, 67):
        (output,) = llm.generate("hello", SamplingParams(logit_bias={last: 100.0}, max_tokens=4))
        assert output.outputs[0].token_ids == (last,)
        assert output.outputs[0].finish_reason == "stop"


def test_the_command_line_samples_as_the_folder_says_too(folder: Path, forerun) -> None:
    def answer(*options: str) -> str:
        typed = ["generate", "hello", "-m", str(folder), "--raw", "-n", "24", "-t", "1", *options]
        code, out, _ = forerun(*typed)
        assert code == 0
        return out

    assert len({answer() for _ in range(4)}) > 1
    assert answer("--temperature", "0") == answer("--temp", "0") != answer("--seed", "1")
    llm = LLM(str(folder))
    params = llm.default_params()
    params.seed, params.max_tokens = 1, 24
    (output,) = llm.generate("hello", params)
    assert answer("--seed", "1").strip() == output.outputs[0].text.strip()


def test_a_filter_without_a_temperature_is_noted(default_model: Path, forerun, caplog) -> None:
    typed = ["generate", "hi", "-m", str(default_model), "-n", "1", "-c", "64", "--top-p"]
    forerun(*typed, "0.93", "--temp", "0.5")
    assert "no effect" not in caplog.text
    assert forerun(*typed, "0.93")[0] == 0
    assert "--top-p 0.93 has no effect: this model is decoded greedily" in caplog.text


def test_settings_that_are_out_of_range_name_their_file(folder: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(folder, tmp_path / "m")
    write_settings(damaged, do_sample=True, temperature=-2)
    with pytest.raises(LoadError, match=r"generation_config.json: temperature must be from 0"):
        LLM(str(damaged))
