"""`forerun check MODEL`: what is said of a model is what loading, planning and counting say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import safetensors.torch
import torch

from forerun.model.loader import load_model
from forerun.model.model import FLOPS_A_BYTE
from forerun.model.shapes import attention_flops
from forerun.weights.checkpoint import open_checkpoint
from tests.cli.helpers import the_json
from tests.model.test_lying_files import honest
from tests.model.tiny import hf_model
from tests.weights.raw_gguf import Entry
from tests.weights.test_hf import byte_level_encoder

Q8_K = 15


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    path = tmp_path / "experts.gguf"
    path.write_bytes(honest("gpt_oss").to_bytes())
    return path


def test_the_default_model_is_described_as_it_loads(forerun, default_model: Path) -> None:
    code, out, _ = forerun("check", default_model, "--json")
    document = the_json(out)
    assert code == 0
    checkpoint = open_checkpoint(default_model)
    assert (document["family"], document["architecture"]) == ("llama", checkpoint.architecture)
    assert sum(each["tensors"] for each in document["formats"]) == len(checkpoint.names())
    stored = sum(checkpoint.tensor(name).nbytes for name in checkpoint.names())
    assert sum(each["mb"] for each in document["formats"]) == pytest.approx(stored / 1e6, abs=0.01)
    assert document["unsupported"] == document["drafting"]["heads"] == []
    assert document["experts"] is None
    assert document["context"] == 8192
    assert document["chat"]["template"] is True
    assert document["drafting"]["auto"] == "mlp_speculator++recycling"
    assert document["drafting"]["ships"] == ["mlp_speculator", "recycling"]
    planned = the_json(forerun("plan", "-m", default_model, "--json")[1])
    assert document["memory"]["components"] == planned["components"]


def test_words_say_what_the_document_says(forerun, default_model: Path) -> None:
    code, out, _ = forerun("check", default_model)
    said = " ".join(out.split())
    assert code == 0
    assert "llama (llama, GGUF)" in said
    assert "auto is mlp_speculator++recycling" in said
    assert "q8_0: 1 tensor, 30.08 MB" in said
    assert "forerun plan says of what" in said


def test_a_long_context_costs_what_the_controller_expects(forerun, default_model: Path) -> None:
    found = the_json(forerun("check", default_model, "--json")[1])["long"]
    assert found == the_json(forerun("plan", "-m", default_model, "--json")[1])["long"]
    model = load_model(open_checkpoint(default_model))
    attention = attention_flops(model.config, 8000) / (FLOPS_A_BYTE * model.nbytes())
    assert found["attention"] == pytest.approx(attention, abs=1e-3)
    assert found["v"] == pytest.approx((1 + 8 * attention) / (1 + attention), abs=0.01)
    for command in (("check", default_model), ("plan", "-m", default_model)):
        said = " ".join(forerun(*command)[1].split())
        assert f"one of 8 rows takes at least {found['v']:.1f} times as long" in said


def test_experts_are_counted(forerun, experts: Path) -> None:
    document = the_json(forerun("check", experts, "--json")[1])
    assert document["experts"] == {"num_experts": 6, "num_active": 2, "layers": 2}
    assert document["chat"]["template"] is False
    config = load_model(open_checkpoint(experts)).config
    assert document["layers"] == config.num_layers
    said = " ".join(forerun("check", experts)[1].split())
    assert "f32: 41 tensors" in said
    assert "GPU its tokens with --device cuda are the CPU's" in said


def test_what_keeps_a_model_from_the_kernels_is_said(forerun, tmp_path: Path) -> None:
    path = tmp_path / "narrow.gguf"
    path.write_bytes(honest("granitemoe").to_bytes())  # experts of 24
    code, out, _ = forerun("check", path)
    assert code == 1
    assert "cannot run on cpu" in out
    assert "multiples of 16" in out


def test_heads_that_draft_inside_a_file_are_said(forerun, tmp_path: Path) -> None:
    path, raw = tmp_path / "heads.gguf", honest("llama")
    raw.entries.append(Entry("mtp.fc.weight", (32, 8), 0, len(raw.data)))
    raw.data += bytes(4 * 32 * 8)
    path.write_bytes(raw.to_bytes())
    assert the_json(forerun("check", path, "--json")[1])["drafting"]["heads"] == ["mtp.fc.weight"]
    assert "mtp.fc.weight in the file: not used" in " ".join(forerun("check", path)[1].split())


def test_a_folder_is_described_with_its_chat_form_and_what_is_left_alone(
    forerun, tmp_path: Path
) -> None:
    hf_model("qwen3_moe", vocab_size=268, moe_intermediate_size=32).save_pretrained(tmp_path)
    byte_level_encoder().save(str(tmp_path / "tokenizer.json"))
    template = "{% if tools %}<tool_call>{% endif %}<think>{{ messages }}"
    settings = {"eos_token": "<|endoftext|>", "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    tensors["mtp.steps"] = torch.zeros(3, dtype=torch.int32)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    code, out, _ = forerun("check", tmp_path, "--json")
    document = the_json(out)
    assert code == 0
    assert document["architecture"] == "Qwen3MoeForCausalLM"
    assert document["experts"] == {"num_experts": 6, "num_active": 2, "layers": 2}
    assert document["layers"] == 3  # one is dense
    thoughts = ["<think>", "</think>"]
    chat = {"template": True, "tools": True, "calls": "<tool_call>", "thoughts": thoughts}
    content = dict.fromkeys(("user", "system", "assistant", "tool"), "text")
    assert document["chat"] == chat | {"content": content}
    assert document["unsupported"] == document["drafting"]["heads"] == ["mtp.steps"]
    said = " ".join(forerun("check", tmp_path)[1].split())
    assert "a template; tool calls as <tool_call>; thinks from <think> to </think>" in said
    assert "not supported and not used: mtp.steps" in said


def test_a_model_that_cannot_be_loaded_says_why_in_a_line(forerun, tmp_path: Path) -> None:
    path, raw = tmp_path / "model.gguf", honest("llama")
    for entry in raw.entries[2:7]:
        entry.type_id = Q8_K
    path.write_bytes(raw.to_bytes())
    code, out, err = forerun("check", path)
    assert (code, err, out.count("\n")) == (1, "", 1)
    names = [entry.name for entry in raw.entries[2:5]]
    assert f"tensor '{names[0]}' is stored as Q8_K, which is not supported" in out
    assert f"nor is that of '{names[1]}' and '{names[2]}' and 2 more" in out
    document = the_json(forerun("check", path, "--json")[1])
    assert document["loads"] is False
    assert names[0] in document["error"]


def test_an_unknown_family_is_refused_in_the_loaders_words(forerun, tmp_path: Path) -> None:
    path, raw = tmp_path / "model.gguf", honest("llama")
    raw.metadata["general.architecture"] = "mamba"
    path.write_bytes(raw.to_bytes())
    code, out, _ = forerun("check", path)
    assert code == 1
    assert "unknown architecture 'mamba'" in out


def test_mistakes_are_no_answers(forerun, default_model: Path) -> None:
    assert forerun("check", "/no/such.gguf")[0] == 2
    code, _, err = forerun("check", default_model, "--draft-quant", "int4")
    assert code == 2
    assert "--draft-quant int4 is for a draft" in err
    code, _, err = forerun("check", default_model, "--quant", "int5")
    assert code == 2
    assert "int5" in err
