"""The MLP speculator: which state it drafts from, and its checkpoints."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import dataclasses
import json
from pathlib import Path

import numpy as np
import torch

from forerun.core.errors import LoadError
from forerun.core.params import SamplingParams
from forerun.core.types import Draft, Outcome, Seq
from forerun.drafters.base.cascade import Cascade
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import folder
from forerun.drafters.base.networks.network import Network
from forerun.drafters.base.spec import DrafterSpec
from forerun.drafters.mlp_speculator import NETWORK, Options, build, files
from forerun.drafters.mlp_speculator.config import MLPSpeculatorConfig
from forerun.lab.torch import backend
from forerun.lab.torch.networks.mlp_speculator import MLPSpeculator
from forerun.model.random_model import random_config, random_weights
from forerun.weights.stored import stored_floats
from tests.drafters.helpers import Words, refusal
from tests.oracles.growth import Solo, Step
from tests.oracles.growth import draft as drafted
from tests.oracles.networks import TorchRecurrent
from tests.tiny import tiny_model

WIDTH, VOCAB, INNER = 32, 24, 48


def target(model=None):
    return Target(model or tiny_model(3), None, 4, 256)


def random(*shape):
    generator = np.random.default_rng(sum(shape))
    return generator.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)


IBM = {
    "architectures": ["MLPSpeculatorPreTrainedModel"],
    "model_type": "mlp_speculator",
    "emb_dim": WIDTH,
    "inner_dim": INNER,
    "vocab_size": VOCAB,
    "n_predict": 3,
    "n_candidates": 5,
    "top_k_tokens_per_head": [4, 3, 2],
    "scale_input": True,
    "tie_weights": False,
}


def ibm_tensors(num_sets, prefix="speculator."):
    tensors = {}
    for i in range(num_sets):
        tensors[f"{prefix}emb.{i}.weight"] = random(VOCAB, INNER) + i
        tensors[f"{prefix}proj.{i}.weight"] = random(INNER, INNER if i else WIDTH) + i
        tensors[f"{prefix}head.{i}.weight"] = random(VOCAB, INNER) * (4 - i)
        tensors[f"{prefix}ln.{i}.weight"] = np.full(INNER, 1.0 + i, np.float32)
        tensors[f"{prefix}ln.{i}.bias"] = random(INNER)
    return tensors


LSTM = {
    "model_type": "mlp_speculator",
    "cell": "lstm",
    "hidden_size": WIDTH,
    "inner_dim": WIDTH,
    "vocab_size": VOCAB,
    "n_predict": 4,
    "target_embedding": True,
    "target_head": True,
    "temperature": [0.9, 1.1],
}
LSTM_TENSORS = {
    "projs.0.weight": random(4 * WIDTH, WIDTH),
    "projs.1.weight": random(4 * WIDTH, WIDTH) / 2,
    "emb_map.weight": random(4 * WIDTH, WIDTH) / 3,
    "head_map.weight": np.eye(WIDTH, dtype=np.float32),
    "cell_ln.0.weight": np.ones(WIDTH, np.float32),
    "cell_ln.0.bias": np.zeros(WIDTH, np.float32),
    "state_ln.0.weight": np.ones(WIDTH, np.float32),
    "state_ln.0.bias": np.zeros(WIDTH, np.float32),
    "draft_ids": np.arange(0, VOCAB, 2),
}


def save(path, config, tensors):
    folder.write(path, config, tensors)
    return str(path)


def drafts(model, seed=0, nodes=8):
    options = Options(model=model, quant="none", min_chance=0, num_draft=nodes)
    drafter = build(options, target())
    hidden = np.random.default_rng(seed).standard_normal((1, WIDTH), np.float32)
    return drafted(drafter, Solo([5], [nodes], 6, 0.0, states=hidden))[0]


@pytest.mark.parametrize("cell", ["lstm", "mlp"])
def test_what_was_trained_is_what_drafts(tmp_path, cell):
    """The module that `forerun train drafter` trains and the oracle of its folder give the same chances."""
    config = LSTM | {"cell": cell, "scale_input": True, "tie_weights": True}
    here, tokens = target(), LSTM_TENSORS["draft_ids"]
    rows = torch.from_numpy(here.model.embed(np.arange(VOCAB)))
    head = torch.from_numpy(here.model.head_weights(tokens))
    known = {field.name for field in dataclasses.fields(MLPSpeculatorConfig)}
    trained = MLPSpeculator(
        MLPSpeculatorConfig(**{k: v for k, v in config.items() if k in known}),
        embedding=rows,
        head=head,
    )
    torch.manual_seed(1)
    for weight in trained.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    tensors = {name: each.numpy() for name, each in trained.state_dict().items()}
    save(tmp_path, config, tensors | {"draft_ids": tokens})
    network = TorchRecurrent(NETWORK.read(str(tmp_path), here), here.model)
    hidden = torch.randn(WIDTH)
    state, ours = trained.begin(hidden), network.begin(hidden)
    for depth, token in enumerate((5, 2, 8)):
        state, logits = trained.step(state, torch.tensor(token), depth)
        ours = network.advance(torch.tensor(token), depth, ours)
        ids, probabilities = network.likeliest(ours.x, Step(0, -1, 0, depth))
        expected = (logits / config["temperature"][min(depth, 1)]).softmax(-1).detach().numpy()
        assert expected.max() == pytest.approx(probabilities[0], abs=1e-5)
        assert np.allclose(expected[np.searchsorted(tokens, ids)], probabilities, atol=1e-5)


def state_of(drafter):
    hidden, row = drafter.states[0]
    return hidden[row]


def test_a_draft_starts_from_the_last_committed_row(tmp_path):
    drafter = build(Options(model="untrained"), target())
    rows = np.arange(4 * WIDTH, dtype=np.float32).reshape(4, WIDTH)
    seq = Seq(0, [1, 2, 3], SamplingParams(temperature=0), 0)
    drafter.begin(seq, Outcome((), (3,), hidden=rows))
    assert np.array_equal(state_of(drafter), rows[3])
    seq.tokens += [7, 8]
    draft = Draft((6, 7, 9), (-1, -1, 1))
    drafter.observe([seq], [draft], [Outcome((1,), (7, 8), hidden=rows)])
    assert np.array_equal(state_of(drafter), rows[2])  # node 1 is row 2
    seq.tokens += [4]
    drafter.observe([seq], [draft], [Outcome((1,), (4,), hidden=rows)])  # cut: the last token was
    assert np.array_equal(state_of(drafter), rows[0])
    before = drafter.propose([seq], [7])
    state = state_of(drafter)
    drafter.end(seq)
    drafter.begin(seq, Outcome((), (4,), hidden=state[None]))  # preempted, and back
    assert drafter.propose([seq], [7]) == before


@pytest.mark.parametrize("prefix", ["speculator.", ""])
def test_ibm_checkpoints_are_read(tmp_path, prefix):
    """Untied: as many of all as steps; tied and repeated or left out, it is the same."""
    untied = drafts(save(tmp_path / "a", IBM, ibm_tensors(3, prefix)))
    assert len(untied[0]) == 8
    tied = IBM | {"tie_weights": True}
    tensors = {n: t for n, t in ibm_tensors(3, prefix).items() if ".0." in n or "proj.1" in n}
    repeated = dict(tensors)
    for name, tensor in tensors.items():
        if "proj" not in name:
            repeated[name.replace(".0.", ".1.")] = repeated[name.replace(".0.", ".2.")] = tensor
    repeated[f"{prefix}proj.2.weight"] = tensors[f"{prefix}proj.1.weight"]
    short, long = save(tmp_path / "b", tied, tensors), save(tmp_path / "c", tied, repeated)
    assert drafts(short) == drafts(long) != untied


def test_ours_is_read_rounded_or_not(tmp_path):
    whole = drafts(save(tmp_path / "a", LSTM, LSTM_TENSORS))
    assert set(whole[0]) <= set(range(0, VOCAB, 2))
    rounded = folder.rounded(LSTM_TENSORS)
    assert rounded["projs.0.weight"].dtype == np.int8
    again = drafts(save(tmp_path / "b", LSTM, rounded))
    assert whole[:2] == again[:2]
    assert whole[2] == pytest.approx(again[2], abs=0.02)
    stored = folder.open_network(str(tmp_path / "b")).tensor("projs.0.weight").dequantize()
    error = np.abs(stored - LSTM_TENSORS["projs.0.weight"])
    assert error.max() <= np.abs(LSTM_TENSORS["projs.0.weight"]).max() / 127


def test_temperature_flattens_the_chances(tmp_path):
    cold = drafts(save(tmp_path / "a", LSTM | {"temperature": 0.5}, LSTM_TENSORS))
    warm = drafts(save(tmp_path / "b", LSTM | {"temperature": [2.0]}, LSTM_TENSORS))
    assert max(cold[2]) > max(warm[2])


def without(name):
    return {other: tensor for other, tensor in LSTM_TENSORS.items() if other != name}


WRONG = [
    ({"hidden_size": 64}, LSTM_TENSORS, "another model: it reads states of width 64, this model has 32"),
    ({"vocab_size": 25}, LSTM_TENSORS, "another model: it reads a vocabulary of 25, this model has 24"),
    ({"target": {"name": "big", "num_layers": 9}}, LSTM_TENSORS, "for big, whose num layers is 9"),
    ({"n_predict": 0}, LSTM_TENSORS, "'n_predict' is 0, but must be a whole number from 1 to 16"),
    ({"cell": "gru"}, LSTM_TENSORS, "'cell' must be one of mlp, sum_rnn, lstm, sum_lstm"),
    ({"temperature": [0.0]}, LSTM_TENSORS, "'temperature' must be numbers above 0"),
    ({"tie_lstm_embs": 1}, LSTM_TENSORS, "'tie_lstm_embs' is 1, but must be true or false"),
    ({}, without("projs.1.weight"), "tensor 'projs.1.weight' is missing"),
    ({}, LSTM_TENSORS | {"projs.0.weight": random(3, 4)}, "'projs.0.weight' is [3, 4], expected [128, 32]"),
    ({}, LSTM_TENSORS | {"midlayer.q": random(3, 4)}, "tensor 'midlayer.q' is none of such"),
    ({}, LSTM_TENSORS | {"draft_ids": np.array([3, 3])}, "'draft_ids' must be ascending"),
    ({}, LSTM_TENSORS | {"draft_ids": np.array([3, 24])}, "ascending token ids below 24"),
    ({}, LSTM_TENSORS | {"cell_ln.0.bias": np.full(WIDTH, np.nan, np.float32)}, "'cell_ln.0.bias' holds values"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "tensors", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_a_wrong_folder_is_told_in_a_line(tmp_path, config, tensors, message):
    path = save(tmp_path, LSTM | config, tensors)
    assert message in refusal(lambda: build(Options(model=path), target()))


def test_what_is_no_folder_of_such_a_network_is_told_before_anything_is_loaded(tmp_path):
    with pytest.raises(LoadError, match=r"has no config\.json"):
        Options(model=str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(
        LoadError, match="holds 'llama', which is not a recurrent network; allowed: mlp_spec"
    ):
        Options(model=str(tmp_path))
    path = save(tmp_path / "cut", LSTM, LSTM_TENSORS)
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:99])
    with pytest.raises(LoadError, match="cannot be read"):
        build(Options(model=path), target())


def test_the_weights_count():
    model = tiny_model(3)
    small, large = (
        build(Options(model="untrained", quant=quant), target(model)).memory(0, 64).total
        for quant in ("int8", "none")
    )
    assert 0 < small < large
    assert isinstance(drafter := build(Options(model="untrained"), target(model)), Network)
    assert drafter.memory(3, 64).total - drafter.memory(0, 64).total == 3 * 4 * WIDTH


def random_torch_model():
    """The test model in torch."""
    shape = random_config()
    weights = random_weights(3, shape).items()
    return backend.load(shape, [(n, stored_floats(n, weight)) for n, weight in weights])


def with_tokenizer():
    """A target of the test model with a vocabulary."""
    return Target(tiny_model(3), Words(vocab_size=VOCAB), 4, 256)


def test_the_network_that_ships_for_a_target_is_found_by_its_size_and_tokenizer(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "SHIPPED", tmp_path)
    theirs, here = "mlp_speculator++recycling", with_tokenizer()
    assert files.fitting(here) == []
    assert DrafterSpec.of("auto").for_target(here).text() == "recycling"
    trained = folder.describe_target(here, "a model")
    save(tmp_path / "of-another", LSTM | {"target": trained | {"num_layers": 99}}, LSTM_TENSORS)
    assert files.fitting(here) == []
    save(tmp_path / "ours", LSTM | {"target": trained}, LSTM_TENSORS)
    assert files.fitting(here) == [tmp_path / "ours"]
    assert files.fitting(target()) == [], "without a tokenizer nothing can be compared"
    assert DrafterSpec.of("auto").for_target(here).text() == theirs
    assert isinstance(DrafterSpec.of("auto").build(here), Cascade)
    in_torch = dataclasses.replace(here, model=random_torch_model())
    assert DrafterSpec.of("auto").for_target(in_torch).text() == "recycling", "kernels run networks"
    assert DrafterSpec.of("auto", num_draft=3).for_target(here).text() == "recycling:num_draft=3"
    assert DrafterSpec.of("recycling").for_target(here).text() == "recycling"


def test_the_network_made_here_for_a_model_comes_before_what_ships_and_that_before_others(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "shipped")
    here = dataclasses.replace(with_tokenizer(), path=Path("models/mine.gguf"))
    config = LSTM | {"target": folder.describe_target(here, "a model")}
    for path in ("networks/another", "networks/mine", "shipped/theirs"):
        save(tmp_path / path, config, LSTM_TENSORS)
    damaged = tmp_path / "networks" / "damaged" / "config.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    found = ["networks/mine", "shipped/theirs", "networks/another"]
    assert files.fitting(here) == [tmp_path / path for path in found]
    assert "damaged/config.json is not a JSON file" in caplog.text
    assert files.networks_dir() == tmp_path / "networks"


def test_without_a_network_that_ships_a_folder_is_asked_for():
    with pytest.raises(LoadError, match="no network ships for this model: give model=FOLDER"):
        build(Options(), target())
