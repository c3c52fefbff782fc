"""A Hugging Face user's first hour: tensors, tokenizers, messages and tools as they write them, and their folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from forerun import LLM, LoadError, RequestError, SamplingParams
from tests.formats.test_hf import byte_level_encoder
from tests.nn.tiny import hf_model

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
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role\\nnot supported') }}{% endif %}"


def answers(llm: LLM, prompts: object) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]


def test_tensors_and_arrays_are_prompts_and_batches_of_them(smollm2) -> None:
    ids = smollm2.get_tokenizer().encode(TEXT)
    expected = answers(smollm2, ids)
    for one in (torch.tensor(ids), np.array(ids), np.array(ids, np.int32), [torch.tensor(ids)]):
        assert answers(smollm2, one) == expected
    for two in (torch.tensor([ids, ids]), np.array([ids, ids]), [np.array(ids), torch.tensor(ids)]):
        assert answers(smollm2, two) == expected * 2


def test_what_a_tokenizer_returns_is_a_prompt(smollm2) -> None:
    tokenizer = smollm2.get_tokenizer()
    expected = answers(smollm2, TEXT)
    assert answers(smollm2, tokenizer(TEXT)) == expected
    assert answers(smollm2, tokenizer(TEXT, return_tensors="pt")) == expected
    assert answers(smollm2, tokenizer(TEXT, return_tensors="np")["input_ids"]) == expected
    assert answers(smollm2, tokenizer([TEXT, "x"]))[:1] == expected
    ids = tokenizer.encode(TEXT)
    padded = {
        "input_ids": torch.tensor([[2, 2, *ids]]),
        "attention_mask": [[0, 0, *[1] * len(ids)]],
    }
    assert answers(smollm2, padded) == expected
    (output,) = smollm2.generate(tokenizer(TEXT), GREEDY)
    assert tokenizer.decode(output.outputs[0].token_ids) == output.outputs[0].text


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
    with pytest.raises(RequestError, match="the chat template has no place for tools"):
        smollm2.chat(messages, GREEDY, tools=[TOOL])
    with pytest.raises(RequestError, match="tools must be a list of objects"):
        smollm2.chat(messages, GREEDY, tools=["get_weather"], chat_template=TOOL_TEMPLATE)


def test_a_template_that_refuses_a_role_says_so_in_one_line(smollm2) -> None:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    with pytest.raises(RequestError) as caught:
        smollm2.chat(messages, GREEDY, chat_template=NO_SYSTEM)
    assert str(caught.value) == (
        "the chat template refuses these messages: System role not supported"
    )


def test_the_template_makes_ids_or_text_or_tensors(smollm2) -> None:
    tokenizer = smollm2.get_tokenizer()
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>assistant\n")
    assert not tokenizer.apply_chat_template(messages, tokenize=False).endswith("assistant\n")
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    (chatted,) = smollm2.chat(messages, GREEDY)
    assert (chatted.prompt, chatted.prompt_token_ids) == (text, ids)
    settings = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    assert answers(smollm2, tokenizer.apply_chat_template(messages, **settings)) == [
        chatted.outputs[0].token_ids
    ]


# A folder with a model of two layers, as `save_pretrained` writes it


def folder_with(path: Path, **generation: object) -> Path:
    hf_model("llama", vocab_size=268, eos_token_id=[264, 65]).save_pretrained(path)
    byte_level_encoder().save(str(path / "tokenizer.json"))
    settings = {"eos_token": "<|endoftext|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def test_a_folders_own_settings_hold_where_none_are_given(tmp_path: Path) -> None:
    stated = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}
    folder = folder_with(tmp_path / "m", do_sample=True, **stated, eos_token_id=[66, 67])
    llm = LLM(str(folder), drafter="none")
    assert llm.default_params() == SamplingParams(**stated)
    assert llm.tokenizer.eos_ids >= {65, 66, 67}, "lists in both files"
    found = {llm.generate("hello")[0].outputs[0].token_ids for _ in range(8)}
    assert len(found) > 1, "it samples"
    assert answers(llm, "hello") == answers(llm, "hello"), "greedy if asked"
    for last in (65, 66, 67):
        bias = {last: 100.0}
        (output,) = llm.generate("hello", SamplingParams(logit_bias=bias, max_tokens=4))
        assert output.outputs[0].token_ids == (last,)
        assert output.outputs[0].finish_reason == "stop"


def test_settings_that_are_out_of_range_name_their_file(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "m", do_sample=True, temperature=-2)
    with pytest.raises(LoadError, match=r"generation_config.json: temperature must be from 0"):
        LLM(str(folder))
