"""Block drafters: one random network in every layout that others publish, and what the released code computes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from forerun.core.errors import ConfigError
from forerun.drafters.base.contract import Drafter, Target
from forerun.drafters.base.parse import implied
from forerun.drafters.dflash import NETWORK, Options, build
from tests.drafters.helpers import ASKED, SAMPLED, WANTED, refusal
from tests.drafters.test_eagle3 import D2T, IDS, VOCAB, WIDTH, save, states_of
from tests.engine.harness import complete, engine_for
from tests.oracles.growth import Solo
from tests.oracles.growth import draft as drafted
from tests.tiny import tiny_model

LAYERS, HEAD_DIM, RANK = 2, 16, 32
ROTATED = ("q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight")
DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-6,
}
FIXTURE = Path(__file__).parent / "fixtures" / "released_dflash.npz"


def target(**options):
    return Target(tiny_model(3, **{"num_layers": 8, **options}), None, 4, 64)


def network(is_dspark):
    """Random weights by the names of every layout; DSpark's guess even tokens."""
    generator = np.random.default_rng(11)

    def random(*shape):
        values = generator.standard_normal(shape, np.float32) / 4
        return values if len(shape) > 1 else values + 1

    tensors = {"fc.weight": random(WIDTH, 3 * WIDTH)}
    tensors |= {f"{name}.weight": random(WIDTH) for name in ("hidden_norm", "norm")}
    for i in range(LAYERS):
        layer, heads = f"layers.{i}.", {"q": 64, "k": 32, "v": 32}
        for name, rows in heads.items():
            tensors[f"{layer}self_attn.{name}_proj.weight"] = random(rows, WIDTH)
        tensors[f"{layer}self_attn.o_proj.weight"] = random(WIDTH, 64)
        tensors |= {f"{layer}self_attn.{n}_norm.weight": random(HEAD_DIM) for n in "qk"}
        tensors |= {f"{layer}mlp.{n}_proj.weight": random(48, WIDTH) for n in ("gate", "up")}
        tensors[f"{layer}mlp.down_proj.weight"] = random(WIDTH, 48)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}{name}.weight"] = random(WIDTH)
    if is_dspark:
        tensors["markov_head.markov_w1.weight"] = random(VOCAB, RANK)
        tensors["markov_head.markov_w2.weight"] = random(len(IDS), RANK)
        tensors["confidence_head.proj.weight"] = random(1, WIDTH + RANK)
        tensors["confidence_head.proj.bias"] = random(1)
        tensors |= D2T
    return tensors


NESTED = {"mask_token_id": 7, "target_layer_ids": [1, 3, 4]}
MARKOV = {"markov_rank": RANK, "markov_head_type": "vanilla", "enable_confidence_head": True}


def z_lab(path, tensors):
    """DFlash: the block's size beside the nested fields, as in the first folders."""
    config = DECODER | {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}
    return save(
        path, config | {"block_size": 6, "rope_theta": 1e6, "dflash_config": NESTED}, tensors
    )


def z_lab_newer(path, tensors):
    """All of the block's fields nested, and fields of the target that say nothing of the layers."""
    config = DECODER | {
        "architectures": ["DFlashDraftModel"],
        "layer_types": ["full_attention"] * LAYERS,
    }
    rope = {"rope_theta": 1e6, "rope_type": "default", "partial_rotary_factor": 0.25}
    config |= {"rope_parameters": rope, "sliding_window": 4096, "use_sliding_window": True}
    return save(path, config | {"dflash_config": NESTED | {"block_size": 6}}, tensors)


def speculators(path, tensors):
    """By vLLM: layers by what goes into them, copies of the target's embedding and head."""
    kind = "dspark" if "d2t" in tensors else "dflash"
    config = {"architectures": ["DFlashSpeculator"], "speculators_model_type": kind}
    config |= {"block_size": 6, "mask_token_id": 7, "aux_hidden_state_layer_ids": [2, 4, 5]}
    config |= MARKOV if kind == "dspark" else {}
    inner = DECODER | {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    copies = {
        "embed_tokens.weight": np.zeros((VOCAB, WIDTH), np.float32),
        "lm_head.weight": np.zeros((len(IDS), WIDTH), np.float32),
    }
    return save(path, config | {"transformer_layer_config": inner}, tensors | copies)


def deepspec(path, tensors):
    """DSpark as first released: everything beside everything, the target's settings too."""
    config = DECODER | {
        "architectures": ["Qwen3DSparkModel"],
        "rope_theta": 1e6,
        "num_target_layers": 8,
    }
    return save(
        path, config | {"block_size": 6, "attn_output_gate": True} | NESTED | MARKOV, tensors
    )


def liquid(path, tensors):
    """LiquidAI's: neighbours are rotated together."""
    order = np.arange(HEAD_DIM).reshape(2, -1).T.reshape(-1)
    for name, values in tensors.items():
        if name.endswith(ROTATED):
            heads = values.reshape(-1, HEAD_DIM, *values.shape[1:])
            tensors = tensors | {name: heads[:, order].reshape(values.shape)}
    config = DECODER | {"architectures": ["Lfm2DSparkDraftModel"], "model_type": "qwen3"}
    config |= {
        "rope_theta": 1e6,
        "rope_is_neox_style": False,
        "block_size": 6,
        "dflash_config": NESTED,
    }
    return save(path, config | MARKOV, tensors)


def llama_cpp(path, tensors):
    """A GGUF file, as llama.cpp's converter writes it."""
    path.mkdir()
    writer = gguf.GGUFWriter(path / "draft.gguf", "dflash")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_uint32("dflash.block_size", 6)
    writer.add_array("dflash.target_layers", [2, 4, 5])
    writer.add_uint32("tokenizer.ggml.mask_token_id", 7)
    for name, values in tensors.items():
        if name == "d2t":
            writer.add_tensor("d2t", IDS)
        elif name != "t2d":
            writer.add_tensor(their_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path / "draft.gguf")


THEIRS = {
    "hidden_norm": "enc.output_norm",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj",
}


def their_name(name):
    base, _, last = name.rpartition(".")
    prefix = ""
    if base.startswith("layers."):
        _, layer, base = base.split(".", 2)
        prefix = f"blk.{layer}."
    usual = base.replace("self_attn.", "attn_").replace("mlp.", "ffn_").removesuffix("_proj")
    return f"{prefix}{THEIRS.get(base, usual)}.{last}"


LAYOUTS = {
    "dflash": (z_lab, z_lab_newer, speculators, llama_cpp),
    "dspark": (deepspec, liquid, speculators, llama_cpp),
}


def read(path, here=None):
    return NETWORK.read(path, here or target())


def trees(path, rows=40):
    drafter = build(Options(model=path, quant="none", min_chance=0), target())
    drafter.native.prefill(0, [i % VOCAB for i in range(rows)], states_of(1, rows))
    return drafted(drafter, Solo([0], [8], 6, 0.0, rows=[0]))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_layout_of_one_network_is_the_same(kind, tmp_path):
    found, shapes = [], []
    for write in LAYOUTS[kind]:
        path = write(tmp_path / write.__name__, network(kind == "dspark"))
        weights = read(path)
        shapes.append(replace(weights.config, rms_norm_eps=0.0))  # fp32 there
        found.append({name: each.dequantize() for name, each in weights.tensors.items()})
        assert (weights.tokens is not None) == (kind == "dspark")
        assert trees(path) == trees(LAYOUTS[kind][0](tmp_path / "first", network(kind == "dspark")))
        assert implied({"model": path}) == "dflash"
    for config, tensors in zip(shapes[1:], found[1:], strict=True):
        assert config == shapes[0]
        assert tensors.keys() == found[0].keys()
        assert all(np.array_equal(tensors[name], found[0][name]) for name in tensors)
    assert shapes[0].sample_from_anchor == (kind == "dspark")
    assert shapes[0].layers == (1, 3, 4)


def test_who_guesses_in_the_last_tokens_row(tmp_path):
    """SpecForge's DSpark does not, and a flag decides where there is one."""
    config = (
        DECODER
        | {"architectures": ["DSparkDraftModel"], "rope_theta": 1e6, "block_size": 6}
        | MARKOV
    )
    tagged = config | {"dflash_config": NESTED | {"projector_type": "dspark"}}
    flagged = config | {"dflash_config": NESTED, "sample_from_anchor": False}
    plain = config | {"dflash_config": NESTED}
    for name, each, expected in (("a", tagged, False), ("b", flagged, False), ("c", plain, True)):
        weights = read(save(tmp_path / name, each, network(is_dspark=True)))
        assert weights.config.sample_from_anchor is expected


def test_windows_are_those_of_the_layers(tmp_path):
    inner = DECODER | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24}
    config = {"speculators_model_type": "dflash", "transformer_layer_config": inner}
    config |= {"block_size": 6, "mask_token_id": 7, "aux_hidden_state_layer_ids": [2, 4, 5]}
    causal = read(save(tmp_path / "a", config, network(is_dspark=False))).config
    whole = config | {"sliding_window_non_causal": True}
    free = read(save(tmp_path / "b", whole, network(is_dspark=False))).config
    assert (causal.windows, causal.bidirectional) == ((24, 0), (False, True))
    assert (free.windows, free.bidirectional) == ((24, 0), (True, True))


def test_the_released_code_computes_the_same(monkeypatch, tmp_path):
    """z-lab/dflash at 44947fb and the heads of vllm-project/speculators at c05b95b3, on random fp16 weights."""
    torch = pytest.importorskip("torch")
    from tests.oracles.block import TorchBlock

    stored = np.load(FIXTURE)
    config = json.loads(str(stored["config"])) | {"markov_rank": RANK, "sample_from_anchor": False}
    tensors = {
        n.removeprefix("tensor "): stored[n] for n in stored.files if n.startswith("tensor ")
    }
    here = target()
    config |= {"architectures": ["DFlashDraftModel"]}
    path = save(tmp_path, config, {n: t.astype(np.float32) for n, t in tensors.items()})
    oracle = TorchBlock(read(path, here), here.model)
    noise = stored["noise"].astype(np.float32)
    monkeypatch.setattr(here.model, "embed", lambda ids: noise[: len(ids)])
    oracle.prefill(0, [1] * 40, stored["states"].astype(np.float32))
    assert oracle.states(0).numpy() == pytest.approx(stored["hidden"][1:], abs=1e-5)
    for row, token, bias, confidence in zip(
        *(stored[name] for name in ("hidden", "previous", "bias", "confidence")), strict=True
    ):
        state = torch.from_numpy(row)
        added = oracle.logits(state, int(token)) - oracle.head @ state
        assert added.numpy() == pytest.approx(bias, abs=1e-5)
        assert oracle.trust(state, int(token)) == pytest.approx(float(confidence), abs=1e-6)


PROMPTS = [[token % VOCAB for token in prompt] for prompt in ASKED]


@pytest.mark.parametrize("params", [WANTED, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_tokens_are_those_without_it(kind, params, tmp_path):
    path = LAYOUTS[kind][0](tmp_path / "network", network(kind == "dspark"))
    here = target()
    plain = engine_for(here.model, Drafter())
    expected = [run.seq.generated for run in complete(plain, PROMPTS, params)]
    built = build(Options(model=path, quant="none", min_chance=0), here)
    engine = engine_for(here.model, built)
    assert [run.seq.generated for run in complete(engine, PROMPTS, params)] == expected
    stats = engine.stats
    assert stats.drafter_errors == 0
    assert stats.accepted
    assert stats.rejected


WRONG = [
    ({"markov_head_type": "rnn"}, "a Markov head of type 'rnn' is not supported, vanilla is"),
    ({"hidden_size": 64}, "reads states of width 64, this model has 32"),
    ({"vocab_size": 99}, "reads a vocabulary of 99, this model has 24"),
    ({"target_layer_ids": [1, 9]}, "layers of 0 to 7, ascending, must be read, got [1, 9]"),
    ({"mask_token_id": 24}, "'mask_token_id' is 24, but must be a whole number from 0 to 23"),
    ({"layer_types": ["chunked", "full_attention"]}, "layers of type 'chunked' are not supported"),
    ({"hidden_act": "gelu"}, "with hidden_act='gelu' is not supported: only 'silu' is"),
    ({"block_size": None}, "the model's metadata lacks 'block_size'"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_what_does_not_fit_is_told_in_a_line(change, message, tmp_path):
    config = DECODER | {"architectures": ["Qwen3DSparkModel"], "block_size": 6} | NESTED | MARKOV
    path = save(tmp_path, config | change, network(is_dspark=True))
    assert message in refusal(lambda: read(path))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("selector_hidden.weight", np.zeros((4, 4), np.float32), "none of such a network"),
        ("fc.weight", np.zeros((WIDTH, WIDTH), np.float32), "is [32, 32], expected [32, 96]"),
        ("norm.weight", np.full(WIDTH, np.nan, np.float32), "holds values that are not finite"),
    ],
)
def test_a_wrong_tensor_is_named(name, values, message, tmp_path):
    path = deepspec(tmp_path, network(is_dspark=True) | {name: values})
    assert message in refusal(lambda: build(Options(model=path), target()))


def test_a_confidence_head_may_read_the_state_alone(tmp_path):
    """What it does not read of the token before has no weight; the bias is last."""
    tensors = network(is_dspark=True)
    row = tensors["confidence_head.proj.weight"][:, :WIDTH]
    path = deepspec(tmp_path, tensors | {"confidence_head.proj.weight": row})
    vector = read(path).tensors["confidence"].dequantize()
    expected = [*row[0], *np.zeros(RANK), *tensors["confidence_head.proj.bias"]]
    assert vector.tolist() == pytest.approx(expected)
    build(Options(model=path), target())
    path = deepspec(tmp_path, tensors | {"confidence_head.proj.weight": row[:, 1:]})
    assert "have 31 and 1 numbers, expected 32 or 64, and 1" in refusal(lambda: read(path))


def test_a_list_cuts_the_markov_head_too(tmp_path):
    path = deepspec(tmp_path, network(is_dspark=True))
    weights = read(path).cut(np.arange(9))
    assert weights.tokens is not None
    assert weights.tokens.tolist() == [0, 2, 4, 6, 8]
    cut, whole = (each.tensors["markov.out"].dequantize() for each in (weights, read(path)))
    assert np.array_equal(cut, whole[:5])
    with pytest.raises(ConfigError, match="draft_vocab=1000 is more than"):
        build(Options(model=path, draft_vocab="1000"), target())


def test_another_folder_is_refused_before_a_model_is_loaded(tmp_path):
    path = save(tmp_path, {"architectures": ["LlamaForCausalLM"]}, {})
    assert "is not a block drafter; allowed: DFlashDraftModel" in refusal(
        lambda: Options(model=path)
    )
