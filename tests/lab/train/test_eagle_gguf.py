"""EAGLE-3 as llama.cpp's GGUF: the `gguf` package reads what was written, and it says the same again."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest

from forerun.core.errors import LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.eagle3 import NETWORK, Options, build
from forerun.lab.train.kinds.eagle3 import export_gguf
from forerun.weights.gguf import GgufCheckpoint
from tests.drafters.test_eagle3 import IDS, NORMS, OURS, WIDTH, layer_tensors, save, target
from tests.oracles.growth import Solo
from tests.oracles.growth import draft as drafted
from tests.tiny import tiny_model

LLAMA = OURS | {"fc_norm": False, "norm_before_fc": True, "norm_output": False}
TENSORS = layer_tensors(seed=11) | {  # whose drafts rounding leaves in their order
    "input_norm.weight": np.linspace(0.5, 1.5, 3 * WIDTH, dtype=np.float32),
    "draft_ids": IDS,
}
VOCAB = [f"t{i}" for i in range(24)]


@pytest.fixture(scope="module")
def of_target(tmp_path_factory):
    path = tmp_path_factory.mktemp("target") / "target.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCAB)
    writer.add_token_types([1] * len(VOCAB))
    writer.add_token_scores([0.5] * len(VOCAB))
    writer.add_eos_token_id(3)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufCheckpoint(path)


def exported(folder, of_target, config=LLAMA, tensors=TENSORS):
    ours = save(folder / "ours", config, tensors)
    export_gguf(folder / "ours", folder / "out.gguf", target(), of_target)
    return ours, str(folder / "out.gguf")


def drafts(model):
    drafter = build(Options(model=model, quant="none", min_chance=0), target())
    states = np.random.default_rng(1).standard_normal((5, 3 * WIDTH), np.float32)
    drafter.native.prefill(0, [*range(5)], states)
    return drafter.features.layers, drafted(drafter, Solo([0], [8], 4, 0.0, rows=[0]))[0]


@pytest.mark.parametrize("takes_head", [True, False])
@pytest.mark.parametrize("norm_before_residual", [True, False])
def test_what_is_written_says_the_same_again(tmp_path, of_target, takes_head, norm_before_residual):
    config = LLAMA | {"target_head": takes_head, "norm_before_residual": norm_before_residual}
    tensors = dict(TENSORS)
    if takes_head:
        del tensors["lm_head.weight"]
    ours, out = exported(tmp_path, of_target, config, tensors)
    before, after = (NETWORK.read(str(path), target()) for path in (ours, out))
    eps = pytest.approx(after.config.rms_norm_eps)  # of single precision in the file
    assert before.config.rms_norm_eps == eps
    same = {"target_head": takes_head, "rms_norm_eps": before.config.rms_norm_eps}
    assert replace(after.config, **same) == before.config
    assert after.tokens.tolist() == before.tokens.tolist()
    if takes_head:
        assert after.tensors["head.0"].shape == (len(IDS), WIDTH)
    for name, stored in before.tensors.items():  # Q8_0: half a step, and a scale in half precision
        here, there = stored.dequantize(), after.tensors[name].dequantize()
        np.testing.assert_allclose(there, here, rtol=0, atol=np.abs(here).max() / 200)
    (layers, expected), (other, trees) = drafts(ours), drafts(out)
    assert layers == other
    assert trees[0][:3] == expected[0][:3]
    assert trees[2][:3] == pytest.approx(expected[2][:3], abs=0.05)


def test_the_package_finds_what_llama_cpp_looks_for(tmp_path, of_target):
    _, out = exported(tmp_path, of_target)
    reader = gguf.GGUFReader(out)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "eagle3"
    assert fields["eagle3.target_layers"] == [2, 4, 5]  # by what goes in; ours are 1, 3, 4
    assert fields["eagle3.target_hidden_size"] == WIDTH
    assert fields["eagle3.norm_before_fc"] is True
    assert fields["eagle3.norm_before_residual"] is False
    assert fields["eagle3.block_count"] == 1
    assert fields["eagle3.attention.head_count"] == 4
    assert fields["eagle3.attention.head_count_kv"] == 2
    assert fields["eagle3.attention.key_length"] == fields["eagle3.rope.dimension_count"] == 16
    theirs = gguf.GGUFReader(of_target.path)
    for name, field in theirs.fields.items():
        if name.startswith("tokenizer."):
            assert fields[name] == field.contents()
            assert reader.fields[name].types == field.types
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert tensors["d2t"].data.tolist() == IDS.tolist()
    assert [*tensors["blk.0.attn_q.weight"].shape] == [2 * WIDTH, 64]
    assert [*tensors["output.weight"].shape] == [WIDTH, len(IDS)]
    assert "token_embd.weight" not in tensors
    norms = {"attn_norm": "input_layernorm", "attn_norm_2": "hidden_norm"}
    for name, ours in norms.items():
        written = tensors[f"blk.0.{name}.weight"].data
        assert np.array_equal(written, np.asarray(TENSORS[f"midlayer.{ours}.weight"]))


def test_heads_turn_in_pairs_as_ours_turn_in_halves(tmp_path, of_target):
    """llama.cpp's rotation of neighbours on what is written is ours on what was: scores are equal."""
    _, out = exported(tmp_path, of_target)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}
    scores = []
    x = np.random.default_rng(2).standard_normal((2, 2 * WIDTH), np.float32)
    angles = np.arange(2)[:, None] * 10000.0 ** (-np.arange(0, 16, 2) / 16)
    for is_written in (True, False):
        turned = []
        for name in ("q", "k"):
            weight = np.asarray(TENSORS[f"midlayer.self_attn.{name}_proj.weight"])
            if is_written:
                stored = tensors[f"blk.0.attn_{name}.weight"]
                weight = gguf.dequantize(stored.data, stored.tensor_type)
            head = (x @ weight.T)[:, :16]
            first, second = (
                (head[:, 0::2], head[:, 1::2]) if is_written else (head[:, :8], head[:, 8:])
            )
            cos, sin = np.cos(angles), np.sin(angles)
            turned.append(
                np.concatenate([first * cos - second * sin, second * cos + first * sin], 1)
            )
        scores.append(turned[0] @ turned[1].T)
    np.testing.assert_allclose(*scores, atol=0.02 * np.abs(scores[1]).max())


WRONG = [
    ({"norm_output": True}, {}, "llama.cpp has no norm_output: train with"),
    ({"fc_norm": True, "norm_before_fc": False}, NORMS, "llama.cpp has no fc_norm: train with"),
]


@pytest.mark.parametrize(("config", "more", "message"), WRONG, ids=["output", "fc"])
def test_what_llama_cpp_cannot_run_is_refused(tmp_path, of_target, config, more, message):
    tensors = TENSORS | more
    if "fc_norm" in config:
        tensors.pop("input_norm.weight")
    with pytest.raises(LoadError, match=message):
        exported(tmp_path, of_target, LLAMA | config, tensors)
    assert not (tmp_path / "out.gguf").exists()


def test_another_file_is_refused_before_anything_is_loaded(of_target):
    with pytest.raises(LoadError, match="holds 'llama', which is not EAGLE-3"):
        Options(model=str(of_target.path))


def test_a_file_of_another_target_is_refused(tmp_path, of_target):
    _, out = exported(tmp_path, of_target)
    small = Target(tiny_model(3, num_layers=4), None, 4, 64)
    with pytest.raises(LoadError, match="three layers of 1 to 4 must be read"):
        build(Options(model=out), small)
