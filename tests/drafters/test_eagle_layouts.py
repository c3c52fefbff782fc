"""One random EAGLE-3 network in every layout that others publish: the same logits."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


import gguf
import numpy as np
import torch

from forerun.core.errors import ConfigError, LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.eagle3 import NETWORK, Options, build
from tests.drafters.helpers import refusal
from tests.drafters.test_eagle3 import (
    D2T,
    IDS,
    OURS,
    VOCAB,
    WIDTH,
    layer_tensors,
    save,
    states_of,
    target,
)
from tests.oracles.growth import Solo
from tests.oracles.growth import draft as drafted
from tests.oracles.networks import TorchEagle
from tests.tiny import tiny_model

SHAPES = {
    key: OURS[key]
    for key in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
    )
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
NATIVE = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
EMBEDDING = {
    "embed_tokens.weight": np.random.default_rng(9).standard_normal((VOCAB, WIDTH), np.float32)
}
HEADS = {f"self_attn.{n}_norm.weight": np.linspace(0.5, 2.0, 16, dtype=np.float32) for n in "qk"}


def ours(path, options, tensors):
    """Layers by what comes out, and the tokens of the head themselves."""
    tokens = {"draft_ids": IDS} if "d2t" in tensors else {}
    left = {name: t for name, t in tensors.items() if name not in D2T}
    config = SHAPES | {"model_type": "eagle3", "layers": [1, 3, 4]}
    return save(path, config | options, left | tokens)


def safeailab(path, options, tensors):
    """`midlayer`, offsets and a mask, layers by what goes in; the defaults of the format are left out."""
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}}
    return save(path, NATIVE | SHAPES | nested | options, tensors)


def specforge(path, options, tensors):
    """As SafeAILab's, but layers by what comes out."""
    nested = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    config = NATIVE | SHAPES | {"eagle_config": nested, "draft_vocab_size": len(IDS)}
    return save(path, config | options, tensors)


def angelslim(path, options, tensors):
    config = SHAPES | {"architectures": ["Eagle3LlamaForCausalLM"], "model_type": "qwen3"}
    config |= {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    return save(path, config | options, {f"model.{name}": t for name, t in tensors.items()})


def speculators(path, options, tensors):
    """RedHat's: the layer's configuration by itself, in the newer words for positions."""
    config = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}
    config |= {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "draft_vocab_size": len(IDS)}
    scaling, theta = options.pop("rope_scaling", {}), options.pop("rope_theta", 10000.0)
    inner = SHAPES | {"rope_parameters": {"rope_theta": theta, **scaling}}
    inner |= {k: options.pop(k) for k in ("max_position_embeddings",) if k in options}
    config |= {"transformer_layer_config": inner, "speculators_config": {"algorithm": "eagle3"}}
    named = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    return save(path, config | options, named)


LAYOUTS = {each.__name__: each for each in (ours, safeailab, specforge, angelslim, speculators)}
KINDS = {
    "plain": {},
    "its own embedding": {"tensors": EMBEDDING},
    "the target's head": {"without": ("lm_head.weight",)},
    "norms of q and k": {"tensors": {f"midlayer.{n}": t for n, t in HEADS.items()}},
    "residual from the norm": {"options": {"norm_before_residual": True}},
    "one norm before fc": {
        "options": {"norm_before_fc": True},
        "tensors": {"input_norm.weight": np.linspace(0.5, 1.5, 3 * WIDTH, dtype=np.float32)},
    },
    "llama3": {"options": {"rope_theta": 5e5, "rope_scaling": LLAMA3}},
    "yarn": {"options": {"rope_scaling": YARN, "max_position_embeddings": 128}},
    "all tokens": {"without": ("d2t", "t2d", "lm_head.weight")},
}


def network(kind):
    """Return what a kind's configuration and tensors have besides or instead of the plain ones."""
    given = KINDS[kind]
    tensors = layer_tensors() | D2T | given.get("tensors", {})
    left = {name: t for name, t in tensors.items() if name not in given.get("without", ())}
    return dict(given.get("options", {})), left


def built(path, **options):
    return build(Options(model=path, quant="none", min_chance=0, **options), target())


def oracle(path):
    """Return the network of a file in torch."""
    here = target()
    weights = NETWORK.read(path, here)
    return TorchEagle(weights, here.model, here.max_len)


def logits(path, rows=40):
    """Return the logits after some rows, which see each other."""
    net = oracle(path).net
    states = torch.from_numpy(states_of(1, rows))[None]
    tokens = torch.arange(rows)[None] % VOCAB
    return net.step(net.fuse(states), tokens, torch.arange(rows)[None])[1]


def trees(network, rows=40):
    getattr(network, "native", network).prefill(
        0, [i % VOCAB for i in range(rows)], states_of(1, rows)
    )
    return drafted(network, Solo([0], [8], 4, 0.0, rows=[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_of_one_network_gives_the_same_logits(kind, tmp_path):
    by_layout = []
    for name, write in LAYOUTS.items():
        path = write(tmp_path / name, *network(kind))
        assert built(path).features.layers == (1, 3, 4)
        by_layout.append(logits(path))
    assert all(other.equal(by_layout[0]) for other in by_layout[1:])
    if kind != "plain":
        plain = logits(safeailab(tmp_path / "plain", *network("plain")))
        assert plain.shape != by_layout[0].shape or not torch.allclose(
            plain, by_layout[0], atol=1e-3
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_native_network_grows_the_trees_of_the_torch_one(kind, tmp_path):
    path = specforge(tmp_path, *network(kind))
    (tokens, parents, probabilities), *_ = trees(built(path))
    (tokens2, parents2, chances2), *_ = trees(oracle(path))
    assert [tokens, parents] == [tokens2, parents2]
    assert probabilities == pytest.approx(chances2, abs=5e-3)


def gguf_file(path, kind, vocab_size=VOCAB, width=WIDTH):
    """Write what llama.cpp's converter makes of a network: pairs of rotated rows, tokens instead of offsets."""
    options, tensors = network(kind)
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_context_length(options.get("max_position_embeddings", 128))
    sizes = {
        "embedding_length": WIDTH,
        "block_count": 1,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "vocab_size": vocab_size,
        "target_hidden_size": width,
    }
    for key, value in sizes.items():
        writer.add_uint32(f"eagle3.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(options.get("rope_theta", 10000.0))
    writer.add_array("eagle3.target_layers", [2, 4, 5])
    for flag in ("norm_before_residual", "norm_before_fc"):
        writer.add_bool(f"eagle3.{flag}", options.get(flag, False))
    scaling = options.get("rope_scaling", {})
    if scaling.get("rope_type") == "yarn":
        writer.add_string("eagle3.rope.scaling.type", "yarn")
        writer.add_float32("eagle3.rope.scaling.factor", 4.0)
        writer.add_uint32("eagle3.rope.scaling.original_context_length", 32)
    if scaling.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(5e5))
    for name, tensor in tensors.items():
        if name != "t2d":
            writer.add_tensor(*renamed(name, tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def llama3_divisors(theta):
    """Divide slow features by 8, keep fast ones, blend in between, as llama.cpp's converter writes it."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, 16, 2) / 16)
    smooth = (32 / wavelengths - 1.0) / (4.0 - 1.0)
    blended = 1 / ((1 - smooth) / 8.0 + smooth)
    divisors = np.where(wavelengths < 8, 1.0, np.where(wavelengths > 32, 8.0, blended))
    return divisors.astype(np.float32)


THEIRS = {
    "fc": "fc",
    "input_norm": "enc.output_norm",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "input_layernorm": "blk.0.attn_norm",
    "hidden_norm": "blk.0.attn_norm_2",
    "post_attention_layernorm": "blk.0.ffn_norm",
    **{f"{n}_proj": f"blk.0.attn_{n}" for n in "qkv"},
    "o_proj": "blk.0.attn_output",
    **{f"{n}_proj": f"blk.0.ffn_{n}" for n in ("gate", "up", "down")},
}


def renamed(name, tensor):
    if name == "d2t":
        return "d2t", IDS
    short = name.removesuffix(".weight").rpartition(".")[2]
    if short in ("q_proj", "k_proj"):
        tensor = tensor.reshape(-1, 2, 8, 2 * WIDTH).swapaxes(1, 2).reshape(tensor.shape)
    return f"{THEIRS[short]}.weight", np.ascontiguousarray(tensor)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "norms of q and k"])
def test_a_gguf_file_gives_the_same_logits(kind, tmp_path):
    folder = specforge(tmp_path / "folder", *network(kind))
    file = str(gguf_file(tmp_path / "network.gguf", kind))
    assert built(file).features.layers == built(folder).features.layers
    assert torch.allclose(logits(file), logits(folder), atol=1e-5)


OTHERS = [
    ({"vocab_size": 48}, {}, "reads a vocabulary of 48, this model has 24"),
    ({"width": 64}, {}, "reads states of width 64, this model has 32"),
    ({}, {"num_layers": 4}, "three layers of 1 to 4 must be read, got [2, 4, 5]"),
]


@pytest.mark.parametrize(
    ("file", "model", "message"), OTHERS, ids=["vocabulary", "width", "layers"]
)
def test_a_gguf_of_another_target_is_told_in_a_line(tmp_path, file, model, message):
    path = gguf_file(tmp_path / "network.gguf", "its own embedding", **file)
    other = Target(tiny_model(3, **{"num_layers": 8, **model}), None, 4, 64)
    assert message in refusal(lambda: build(Options(model=path), other))


def test_a_pickle_is_refused(tmp_path):
    path = safeailab(tmp_path, *network("plain"))
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(LoadError, match=r"pytorch_model\.bin cannot be read: File is not a zip"):
        built(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_head_published_as_a_torch_file_is_the_same(tmp_path, dtype):
    options, tensors = network("plain")
    kept = {n: torch.from_numpy(t) for n, t in tensors.items()}
    kept = {n: t.to(dtype) if t.is_floating_point() else t for n, t in kept.items()}
    rounded = {n: (t.float() if t.is_floating_point() else t).numpy() for n, t in kept.items()}
    path = safeailab(tmp_path / "safe", options, rounded)
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "config.json").write_bytes((tmp_path / "safe" / "config.json").read_bytes())
    torch.save(kept, folder / "pytorch_model.bin")
    assert logits(str(folder)).equal(logits(path))


def test_a_full_head_is_cut_to_a_list(tmp_path):
    """VocabTrim for a head with rows of its own: the same logits for the tokens that stay, and their rows alone."""
    options, tensors = network("all tokens")
    rows = np.random.default_rng(5).standard_normal((VOCAB, WIDTH), np.float32)
    path = specforge(tmp_path, options, tensors | {"lm_head.weight": rows})
    whole, cut = NETWORK.read(path, target()), NETWORK.read(path, target()).cut(IDS)
    assert cut.tokens.tolist() == IDS.tolist()
    assert np.array_equal(cut.tensors["head.0"].dequantize(), rows[IDS])
    assert cut.config.draft_vocab_size == len(IDS)
    assert whole.cut(None) is whole
    small, large = built(path, draft_vocab="12"), built(path, draft_vocab="full")
    assert small.memory(1, 64).weights < large.memory(1, 64).weights
    (tokens, *_), *_ = trees(small)
    assert tokens
    assert max(tokens) < 12
    (everything, *_), *_ = trees(large)
    assert max(everything) >= 12
    by_list = specforge(tmp_path / "listed", *network("plain"))
    (listed, *_), *_ = trees(built(by_list, draft_vocab="8"))
    assert {*listed} <= {*IDS.tolist()} & {*range(8)}


def test_a_list_without_any_of_the_heads_tokens_is_refused(tmp_path):
    path = specforge(tmp_path, *network("plain"))
    late = {"d2t": D2T["d2t"] * 0 + 8, "t2d": np.isin(np.arange(VOCAB), np.arange(len(IDS)) + 8)}
    options, tensors = network("plain")
    path = specforge(tmp_path / "late", options, tensors | late)
    with pytest.raises(ConfigError, match="knows none of the tokens that draft_vocab keeps"):
        built(path, draft_vocab="8")
    with pytest.raises(ConfigError, match="draft_vocab=1000 is more than"):
        built(path, draft_vocab="1000")


def as_torch_file(path, options, tensors):
    """SafeAILab's as first published: the same names in a file of torch."""
    safeailab(path, options, tensors)
    (path / "model.safetensors").unlink()
    torch.save(
        {name: torch.from_numpy(t) for name, t in tensors.items()}, path / "pytorch_model.bin"
    )
    return str(path)


@pytest.mark.parametrize("write", [*LAYOUTS.values(), as_torch_file], ids=lambda f: f.__name__)
def test_a_head_in_the_hubs_cache_loads_by_its_name(write, tmp_path, monkeypatch):
    """As `pull --drafter` leaves it, and in 4 bits; nothing is fetched."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repo, commit = tmp_path / "hub" / "models--org--head", "0" * 40
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    write(repo / "snapshots" / commit, *network("plain"))
    folder = write(tmp_path / "folder", *network("plain"))
    assert logits("org/head").equal(logits(folder))
    drafter = build(Options(model="org/head"), target())
    assert drafter.options.quant == "int4"
    assert drafter.features.layers == (1, 3, 4)
    (tokens, *_), *_ = trees(drafter)
    assert {*tokens} <= {*IDS.tolist()}
