"""Hugging Face folders: weights as stored, the tokenizer's files as transformers reads them, clear refusals."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import json
from pathlib import Path

import safetensors.torch
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from forerun.core.errors import LoadError, RequestError
from forerun.text.tokenizer import Tokenizer
from forerun.weights.checkpoint import open_checkpoint
from tests.weights.files import byte_level_vocabulary, sentencepiece_vocabulary, texts

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4, "eos_token_id": 3}
WEIGHTS = {
    "model.norm.weight": torch.arange(4.0),
    "lm_head.weight": torch.arange(20.0).reshape(5, 4) / 7,
}


def write_folder(
    folder: Path, weights: dict[str, torch.Tensor] | None = None, **files: object
) -> Path:
    """A model folder; keyword `a__json` is the file a.json."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    safetensors.torch.save_file(weights or WEIGHTS, folder / "model.safetensors")
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(content))
    return folder


# Weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_come_back_as_stored(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = {name: values.to(dtype) for name, values in WEIGHTS.items()}
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", weights))
    assert (checkpoint.kind, checkpoint.architecture) == ("hf", "LlamaForCausalLM")
    assert checkpoint.config["hidden_size"] == 4
    assert checkpoint.names() == weights.keys()
    for name, values in weights.items():
        tensor = checkpoint.tensor(name)
        assert tensor.shape == tuple(values.shape)
        assert tensor.nbytes == values.nbytes
        torch.from_numpy(tensor.dequantize()).zero_()
        assert torch.equal(torch.from_numpy(tensor.dequantize()), values.float()), (
            "in memory of its own"
        )
    head = checkpoint.tensor("lm_head.weight")
    assert torch.equal(
        torch.from_numpy(head.rows(slice(1, 4)).dequantize()),
        weights["lm_head.weight"][1:4].float(),
    )


def test_shards_are_one_model(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for i, (name, values) in enumerate(WEIGHTS.items()):
        weight_map[name] = f"model-0000{i}-of-00002.safetensors"
        safetensors.torch.save_file({name: values}, folder / weight_map[name])
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = open_checkpoint(folder)
    assert checkpoint.names() == WEIGHTS.keys()
    for name, values in WEIGHTS.items():
        assert torch.equal(torch.from_numpy(checkpoint.tensor(name).dequantize()), values)
    (folder / weight_map["lm_head.weight"]).unlink()
    with pytest.raises(LoadError, match=r"model-00001-of-00002.safetensors cannot be read"):
        open_checkpoint(folder)


def test_an_unknown_tensor_gets_the_closest_names(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no tensor 'lm_head'; the closest are lm_head.weight"):
        open_checkpoint(write_folder(tmp_path / "m")).tensor("lm_head")


def test_an_unsupported_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"w": torch.arange(4)})
    with pytest.raises(LoadError, match="tensor 'w' is stored as I64, which is not supported"):
        open_checkpoint(folder).tensor("w")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"has no config.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LoadError, match=r"config.json is not a JSON file"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(LoadError, match=r"config.json is not a JSON object"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match="names no architectures"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(LoadError, match=r"has no model.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(LoadError, match=r"pytorch_model.bin.*convert it to safetensors"):
        open_checkpoint(tmp_path)


@given(fraction=st.floats(0, 1, exclude_max=True))
def test_truncated_weights_are_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, fraction: float
) -> None:
    folder = tmp_path_factory.getbasetemp() / "truncated"
    content = safetensors.torch.save(WEIGHTS)
    write_folder(folder)
    (folder / "model.safetensors").write_bytes(content[: int(len(content) * fraction)])
    with pytest.raises(LoadError, match=r"model.safetensors cannot be read") as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


# Tokenizers


def byte_level_encoder() -> tokenizers.Tokenizer:
    tokens, _, merges = byte_level_vocabulary()
    words = {token: i for i, token in enumerate(tokens[:-4])}
    pairs = [(first, second) for first, second in map(str.split, merges)]
    encoder = tokenizers.Tokenizer(models.BPE(words, pairs))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    encoder.add_tokens(["<tool>"])
    return encoder


def sentencepiece_encoder() -> tokenizers.Tokenizer:
    tokens, _, _ = sentencepiece_vocabulary()
    pairs = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "w"), ("▁", "hello")]
    model = models.BPE(
        {token: i for i, token in enumerate(tokens)}, pairs, unk_token="<unk>", byte_fallback=True
    )
    encoder = tokenizers.Tokenizer(model)
    encoder.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    encoder.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    encoder.add_special_tokens(["<unk>", "<s>", "</s>"])
    encoder.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return encoder


ENCODERS = {"byte_level": byte_level_encoder, "sentencepiece": sentencepiece_encoder}


def write_tokenizer(folder: Path, encoder: tokenizers.Tokenizer, **files: object) -> Path:
    write_folder(folder, **files)
    encoder.save(str(folder / "tokenizer.json"))
    return folder


def tokenizer_of(folder: Path, kind: str = "byte_level", **files: object) -> Tokenizer:
    return open_checkpoint(write_tokenizer(folder, ENCODERS[kind](), **files)).tokenizer()


@pytest.mark.parametrize("kind", ENCODERS)
def test_ids_and_texts_are_those_of_the_library(tmp_path: Path, kind: str) -> None:
    tokenizer, library = tokenizer_of(tmp_path / "m", kind), ENCODERS[kind]()
    for text in texts():
        ids = tokenizer.encode(text, bos=False)
        assert ids == library.encode(text, add_special_tokens=False).ids
        for skip in (True, False):
            expected = library.decode(ids, skip_special_tokens=skip)
            assert tokenizer.decode(ids, skip_special=skip) == expected
    assert tokenizer.vocab_size == library.get_vocab_size()


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    size = byte_level_encoder().get_vocab_size()
    tokenizer_of(tmp_path / "m", config__json=CONFIG | {"vocab_size": size})
    with pytest.raises(LoadError, match=rf"has {size} tokens, but .* has {size - 1} rows"):
        tokenizer_of(tmp_path / "m", config__json=CONFIG | {"vocab_size": size - 1})


@pytest.mark.parametrize(
    ("template", "settings"),
    [
        ("$A </s>", {}),
        ("<s> <unk> $A </s> <s>", {}),
        ("<unk> $A", {"bos_token": "<s>"}),
        ("<s> $A", {"bos_token": "<s>", "eos_token": "</s>"}),
    ],
)
def test_what_stands_around_a_text_is_what_post_processing_puts_there(
    tmp_path: Path, template: str, settings: dict[str, object]
) -> None:
    encoder = sentencepiece_encoder()
    marks = [(mark, encoder.token_to_id(mark)) for mark in ("<unk>", "<s>", "</s>")]
    encoder.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks)
    path = write_tokenizer(tmp_path / "m", encoder, tokenizer_config__json=settings)
    tokenizer = open_checkpoint(path).tokenizer()
    for text in ("he hello", "", "é"):
        whole = [*tokenizer.encode(text), *tokenizer.suffix_ids]
        assert whole == encoder.encode(text, add_special_tokens=True).ids


def test_the_ends_named_anywhere_are_ends(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(
        tmp_path / "m",
        tokenizer_config__json={"eos_token": "<|endoftext|>"},
        generation_config__json={"eos_token_id": [7, 8]},
    )
    known = {tokenizer.encode(end)[0] for end in ("<|endoftext|>", "<|im_end|>")}
    assert tokenizer.eos_ids == known | {7, 8, CONFIG["eos_token_id"]}


@pytest.mark.parametrize("place", ["file", "config", "list", "old"])
def test_the_chat_template_is_found(tmp_path: Path, place: str) -> None:
    template = "{{ messages[0].content }}{{ eos_token }}"
    settings: dict[str, object] = {"eos_token": "<|im_end|>"}
    files: dict[str, object] = {}
    if place == "config":
        settings["chat_template"] = template
    elif place == "list":
        settings["chat_template"] = [
            {"name": "tools", "template": "no"},
            {"name": "default", "template": template},
        ]
    elif place == "old":
        files["chat_template__json"] = {"chat_template": template}
    folder = write_tokenizer(
        tmp_path / "m", byte_level_encoder(), tokenizer_config__json=settings, **files
    )
    if place == "file":
        (folder / "chat_template.jinja").write_text(template)
    tokenizer = open_checkpoint(folder).tokenizer()
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == "hi<|im_end|>"


def test_a_template_for_tools_beside_the_usual_one(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "m", byte_level_encoder(), tokenizer_config__json={})
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "additional_chat_templates").mkdir()
    tools = folder / "additional_chat_templates" / "tool_use.jinja"
    tools.write_text("{{ tools[0].function.name }}")
    tokenizer = open_checkpoint(folder).tokenizer()
    talk, tool = [{"role": "user", "content": "hi"}], {"function": {"name": "look"}}
    assert tokenizer.apply_chat_template(talk) == "hi"
    assert tokenizer.apply_chat_template(talk, tools=[tool]) == "look"


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="the model has no chat template"):
        tokenizer_of(tmp_path / "m").apply_chat_template([{"role": "user", "content": "hi"}])


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    with pytest.raises(LoadError, match=r"has no tokenizer.json"):
        open_checkpoint(folder).tokenizer()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadError, match=r"tokenizer.json cannot be read"):
        open_checkpoint(folder).tokenizer()


def test_a_tokenizer_that_writes_words_is_refused(tmp_path: Path) -> None:
    encoder = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    folder = write_tokenizer(tmp_path / "m", encoder)
    with pytest.raises(LoadError, match="its decoder is missing"):
        open_checkpoint(folder).tokenizer()
