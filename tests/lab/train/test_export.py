"""What is exported for other engines drafts what ours drafts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from forerun.drafters.base.networks import folder
from forerun.drafters.medusa import NETWORK
from forerun.lab.train.learners import export
from tests.drafters import test_eagle3 as eagle3
from tests.drafters import test_medusa as medusa
from tests.drafters import test_mlp_speculator as speculator
from tests.oracles.growth import Step
from tests.oracles.networks import TorchMedusa


@pytest.mark.parametrize("takes_head", [True, False])
def test_eagle3_says_the_same(tmp_path, takes_head):
    """As SafeAILab's: the head's rows as their own, d2t as offsets, layers by what goes into them."""
    tensors = eagle3.without("lm_head.weight") if takes_head else eagle3.OUR_TENSORS
    ours = eagle3.save(tmp_path / "ours", eagle3.OURS | {"target_head": takes_head}, tensors)
    out = tmp_path / "out"
    export(tmp_path / "ours", out, eagle3.target())
    written = json.loads((out / "config.json").read_text())
    assert written["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    assert written["architectures"] == ["LlamaForCausalLMEagle3"]
    stored = folder.open_network(str(out))
    assert (
        folder.integers(stored, "d2t") + np.arange(len(eagle3.IDS))
    ).tolist() == eagle3.IDS.tolist()
    assert stored.tensor("lm_head.weight").shape == (len(eagle3.IDS), eagle3.WIDTH)
    (layers, [expected]), (other, [trees]) = eagle3.drafts(ours), eagle3.drafts(str(out))
    assert layers == other
    assert trees[:2] == expected[:2]
    assert trees[2] == pytest.approx(expected[2], abs=0.01)


@pytest.mark.parametrize("target_head", [True, False])
def test_medusa_says_the_same_without_the_target(tmp_path, target_head):
    folder, _ = medusa.ours(tmp_path / "ours", target_head=target_head)
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    (tmp_path / "ours" / "config.json").write_text(json.dumps(config | {"temperature": 1.0}))
    out = tmp_path / "out"
    export(tmp_path / "ours", out, medusa.TARGET)
    read = NETWORK.read(str(out), medusa.TARGET)
    assert read.tokens is None
    assert set(read.tensors) >= {f"head.{k}" for k in range(medusa.HEADS)}
    state, step = torch.as_tensor(medusa.hidden()[0]), Step(0, -1, 0, 1)
    ids, expected = (
        TorchMedusa(weights, medusa.MODEL).likeliest(state, step)[0]
        for weights in (read, NETWORK.read(folder, medusa.TARGET))
    )
    assert [i for i in ids.tolist() if i in expected.tolist()]


OWN_MLP = {
    **{
        n.removeprefix("speculator."): t
        for n, t in speculator.ibm_tensors(1).items()
        if "emb" not in n
    },
    "proj.1.weight": speculator.random(speculator.INNER, speculator.INNER),
    "emb_map.weight": speculator.random(speculator.INNER, speculator.WIDTH),
}
MAPS = {"target_embedding": True, "target_head": True}
UNTIED_MAPS = {
    n: t for n, t in speculator.ibm_tensors(3, "").items() if not n.startswith(("emb", "head"))
} | {
    "emb_map.weight": speculator.random(speculator.INNER, speculator.WIDTH),
    **{
        f"head_map.{i}.weight": speculator.random(speculator.WIDTH, speculator.INNER) * (4 - i)
        for i in range(3)
    },
}
EXPORTED = {
    "lstm": (speculator.LSTM, speculator.LSTM_TENSORS | {"draft_ids": np.arange(speculator.VOCAB)}),
    "mlp": (speculator.IBM | {"tie_weights": True, "target_embedding": True}, OWN_MLP),
    "mlp, untied": (speculator.IBM, speculator.ibm_tensors(3)),
    "mlp, untied, maps": (speculator.IBM | MAPS, UNTIED_MAPS),
}


@pytest.mark.parametrize("kind", EXPORTED)
def test_an_mlp_speculator_says_the_same_without_the_target(tmp_path, kind):
    """fp16, and all of the speculator.target's rows multiplied out."""
    config, tensors = EXPORTED[kind]
    ours = speculator.save(tmp_path / "ours", config | {"temperature": 1.0}, tensors)
    out = tmp_path / "out"
    export(tmp_path / "ours", out, speculator.target())
    written = json.loads((out / "config.json").read_text())
    assert written["architectures"][0].endswith("SpeculatorPreTrainedModel")
    assert "target_head" not in written
    assert not any("map" in name for name in folder.open_network(str(out)).names())
    expected, trees = speculator.drafts(ours), speculator.drafts(str(out))
    assert trees[:2] == expected[:2]
    assert trees[2] == pytest.approx(expected[2], abs=0.01)
