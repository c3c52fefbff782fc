"""EAGLE-3: which rows it is prefilled with, and its checkpoints."""

from __future__ import annotations

import json

import numpy as np
import pytest

from forerun.core.errors import LoadError
from forerun.core.types import Draft, Outcome, Seq
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import folder
from forerun.drafters.eagle3 import Options, build
from tests.drafters.helpers import GREEDY, refusal
from tests.oracles.growth import Solo
from tests.oracles.growth import draft as drafted
from tests.tiny import tiny_model

WIDTH, VOCAB = 32, 24
IDS = np.arange(0, VOCAB, 2)


def target():
    return Target(tiny_model(3, num_layers=8), None, 4, 64)


OURS = {
    "model_type": "eagle3",
    "vocab_size": VOCAB,
    "draft_vocab_size": len(IDS),
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "layers": [1, 3, 4],
    "fc_norm": True,
    "norm_output": True,
    "target_embedding": True,
    "target_head": False,
}


def layer_tensors(prefix="midlayer.", seed=9):
    generator = np.random.default_rng(seed)

    def random(*shape):
        return generator.standard_normal(shape, np.float32) / 4

    heads = {"q": 64, "k": 32, "v": 32}
    tensors = {f"{prefix}self_attn.{n}_proj.weight": random(s, 2 * WIDTH) for n, s in heads.items()}
    tensors[f"{prefix}self_attn.o_proj.weight"] = random(WIDTH, 64)
    tensors |= {f"{prefix}mlp.{n}_proj.weight": random(48, WIDTH) for n in ("gate", "up")}
    tensors[f"{prefix}mlp.down_proj.weight"] = random(WIDTH, 48)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"{prefix}{name}.weight"] = 1 + random(WIDTH)
    tensors |= {"fc.weight": random(WIDTH, 3 * WIDTH), "norm.weight": 1 + random(WIDTH)}
    tensors["lm_head.weight"] = 2 * random(len(IDS), WIDTH)
    return tensors


NORMS = {f"fc_norm.{i}.weight": np.full(WIDTH, 1.0 + i, np.float32) for i in range(3)}
OUR_TENSORS = layer_tensors() | NORMS | {"draft_ids": IDS}
MASK = np.isin(np.arange(VOCAB), IDS)
D2T = {"d2t": IDS - np.arange(len(IDS)), "t2d": MASK}


def save(path, config, tensors):
    folder.write(path, config, tensors)
    return str(path)


def states_of(seed, rows):
    return np.random.default_rng(seed).standard_normal((rows, 3 * WIDTH), np.float32)


def drafts(model, rows=5):
    drafter = build(Options(model=model, quant="none", min_chance=0), target())
    states = states_of(1, rows)
    drafter.native.prefill(0, [*range(rows)], states)
    return drafter.features.layers, drafted(drafter, Solo([0], [8], 4, 0.0, rows=[0]))


def test_the_norms_of_3_1_count(tmp_path):
    trees = [
        drafts(
            save(tmp_path / str(i), OURS | change, OUR_TENSORS if norms else layer_tensors() | D2T)
        )
        for i, (change, norms) in enumerate(
            [({}, True), ({"norm_output": False}, True), ({"fc_norm": False}, False)]
        )
    ]
    assert trees[0] != trees[1]
    assert trees[0] != trees[2]


def test_rows_are_fed_with_the_tokens_after_them():
    drafter = build(Options(model="untrained"), target())
    prefilled = []

    class Kernels:
        def clear(self, slot):
            prefilled.append("clear")

        def reuse(self, slot, source, rows):
            prefilled.append(("reuse", slot, source, rows))

        def prefill(self, slot, tokens, states):
            prefilled.append((tokens, states[:, 0].tolist()))

    drafter.native = Kernels()
    drafter._free = [0, 1]
    rows = np.arange(4, dtype=np.float32)[:, None].repeat(3 * WIDTH, 1)
    seq = Seq(0, [1, 2, 3, 4, 5], GREEDY, 0)
    drafter.begin(seq, Outcome((), (5,), hidden=rows))
    seq.tokens += [7, 8]
    draft = Draft((6, 7, 9), (-1, -1, 1))
    drafter.observe([seq], [draft], [Outcome((1,), (7, 8), hidden=rows)])
    seq.tokens += [9]
    drafter.observe([seq], [draft], [Outcome((1,), (9,), hidden=rows)])  # cut
    drafter.begin(seq, Outcome((), (9,), hidden=rows[:2]))  # preempted, with a reused prefix
    assert prefilled == [
        "clear",
        ([2, 3, 4, 5], [0, 1, 2, 3]),
        ([7, 8], [0, 2]),
        ([9], [0]),
        ("reuse", 1, 1, 5),
        ([8, 9], [0, 1]),
    ]


@pytest.mark.parametrize("ends", [True, False])
def test_a_reused_prefix_has_the_rows_of_the_text_that_read_it(ends):
    """As if all of the prompt had been read: a network that learned to look at a text's first rows finds them."""
    shared, rest = [*range(1, 19)], [[20, 21, 22], [23, 22, 3]]
    states = states_of(4, 24)
    trees = []
    for num_reused in (0, 18, 17):
        drafter = build(Options(model="untrained", quant="none", min_chance=0), target())
        first = Seq(0, [*shared, *rest[0]], GREEDY, 0)
        drafter.begin(first, Outcome((), (22,), hidden=states[:20]))
        if ends:
            drafter.end(first)
        second = Seq(1, [*shared, *rest[1]], GREEDY, 0)
        second_states = np.concatenate([states[:17], states[20:23]])
        drafter.begin(second, Outcome((), (3,), hidden=second_states[num_reused:]))
        trees.append(drafted(drafter, Solo([0], [8], 4, 0.0, rows=[drafter._slots[1]]))[0])
        assert drafter._texts[drafter._slots[1]] == second.tokens
    whole, at_its_end, before = trees
    assert before[:2] == whole[:2]
    assert before[2] == pytest.approx(whole[2], abs=1e-5)
    # One row has the other text's token: nearly the same, where it cannot be the same.
    probabilities = [dict(zip(tree[0][:2], tree[2][:2])) for tree in (whole, at_its_end)]
    assert max(probabilities[0].values()) == pytest.approx(max(probabilities[1].values()), abs=0.2)


def test_of_a_prefix_that_no_slot_has_read_the_beginning_is_taken():
    drafter = build(Options(model="untrained", quant="none"), target())
    states = states_of(5, 8)

    def begin(number, tokens, num_computed):
        outcome = Outcome((), tokens[-1:], hidden=states[:num_computed])
        drafter.begin(Seq(number, tokens, GREEDY, 0), outcome)
        return drafter._texts[drafter._slots[number]]

    assert begin(0, [1, 2, 3, 4, 5, 6], 4) == [1]  # the first row is missing
    assert begin(1, [1, 2, 3, 4, 5], 4) == [1, 2, 3, 4, 5]
    drafter.end(Seq(1, [], GREEDY, 0))
    assert begin(2, [1, 2, 3, 9, 9, 9, 9, 8], 1) == [1, 2, 3, 9]  # three rows, then a gap
    drafter.end(Seq(2, [], GREEDY, 0))
    assert begin(3, [1, 2, 3, 4, 6, 6], 3) == [1, 2, 3, 4, 6, 6]  # all is there again


def without(name):
    return {other: tensor for other, tensor in OUR_TENSORS.items() if other != name}


def layer_ids(*ids):
    return {"layers": None, "eagle_aux_hidden_state_layer_ids": [*ids]}


WRONG = [
    ({"vocab_size": 25}, OUR_TENSORS, "another model: it reads a vocabulary of 25, this model has 24"),
    ({"target_hidden_size": 64}, OUR_TENSORS, "reads states of width 64, this model has 32"),
    ({"target": {"name": "big", "tokenizer": "x", "hidden_size": 8}}, OUR_TENSORS, "for big, whose hidden size"),
    ({"layers": [1, 3]}, OUR_TENSORS, "three layers of 0 to 7 must be read, got [1, 3]"),
    ({"layers": [1, 3, 8]}, OUR_TENSORS, "three layers of 0 to 7 must be read"),
    ({"rope_scaling": {"rope_type": "ntk"}}, OUR_TENSORS, "rope scaling 'ntk' is not supported"),
    ({"rope_scaling": {"rope_type": "yarn"}}, OUR_TENSORS, "rope scaling 'yarn': 'max_position_embeddings' is missing"),
    ({"partial_rotary_factor": 0.5}, OUR_TENSORS, "only whole heads are rotated, not 8 of 16 features"),
    ({"hidden_act": "gelu"}, OUR_TENSORS, "with hidden_act='gelu' is not supported: only 'silu' is"),
    (layer_ids(1, 3, 8), OUR_TENSORS, "three layers of 0 to 7 must be read, got [1, 3, 8]"),
    (layer_ids(2, 3, 9), OUR_TENSORS, "three layers of 1 to 8 must be read, got [2, 3, 9]"),
    ({"num_attention_heads": "x"}, OUR_TENSORS, "'num_attention_heads' is 'x', but must be a whole number"),
    ({}, without("midlayer.mlp.up_proj.weight"), "tensor 'midlayer.mlp.up_proj.weight' is missing"),
    ({}, OUR_TENSORS | {"fc.weight": np.zeros((3, 4), np.float32)}, "'fc.weight' is [3, 4], expected [32, 96]"),
    ({}, OUR_TENSORS | {"fc.bias": np.zeros(4, np.float32)}, "tensor 'fc.bias' is none of such a network"),
    ({}, without("draft_ids") | {"d2t": D2T["d2t"] + 2}, "'d2t' must be ascending token ids below 24"),
    ({}, without("draft_ids") | D2T | {"t2d": ~MASK}, "'t2d' does not name the tokens of 'd2t'"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "tensors", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_a_wrong_folder_is_told_in_a_line(tmp_path, config, tensors, message):
    path = save(tmp_path, OURS | config, tensors)
    assert message in refusal(lambda: build(Options(model=path), target()))


def test_what_is_no_such_network_is_told_before_anything_is_loaded(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mlp_speculator"}))
    with pytest.raises(LoadError, match="holds 'mlp_speculator', which is not EAGLE-3"):
        Options(model=str(tmp_path))
