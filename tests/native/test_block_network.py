"""Block drafters on the native kernels: the trees of the oracle in torch, and the row law."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from forerun import _native
from forerun.drafters.base.contract import Target
from forerun.drafters.dflash.config import BlockConfig
from forerun.drafters.dflash.drafting import block_network
from forerun.drafters.dflash.files import BlockWeights
from forerun.model.config import RopeConfig
from forerun.weights.stored import stored_floats
from tests.arrays import normal
from tests.native import networks
from tests.native.models import VOCAB
from tests.native.networks import MAX_LEN, TOKENS, WIDTH, fill, options_of, prefill, target, text

drafts = partial(networks.drafts, num_nodes=9, num_steps=8)
DFLASH = BlockConfig(
    vocab_size=VOCAB,
    draft_vocab_size=VOCAB,
    hidden_size=WIDTH,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rope=RopeConfig(10000.0, 32),
    rms_norm_eps=1e-6,
    layers=(0, 1, 1),
    block_size=5,
    mask_token_id=7,
    sample_from_anchor=False,
    windows=(0, 0),
    bidirectional=(True, True),
)
DSPARK = replace(
    DFLASH,
    draft_vocab_size=len(TOKENS),
    sample_from_anchor=True,
    block_size=9,
    markov_rank=32,
    has_confidence=True,
)
KINDS = {
    "dflash": DFLASH,
    "dspark": DSPARK,
    "a window, later rows unseen": replace(DFLASH, windows=(33, 0), bidirectional=(False, True)),
    "one layer": replace(DSPARK, windows=(0,), bidirectional=(True,), block_size=12),
}


def weights_of(config):
    tensors = {
        name: normal(*shape, seed=700 + i) / (4 if "norm" in name else 6)
        for i, (name, shape) in enumerate(config.shapes().items())
    }
    tensors = {n: stored_floats(n, 1 + t if "norm" in n else t) for n, t in tensors.items()}
    tokens = TOKENS if config.draft_vocab_size < VOCAB else None
    return BlockWeights(config, tensors, tokens, (1.0, 0.7))


def native(weights, model=None, bits=32):
    here = Target(model or target(), None, 3, MAX_LEN)
    return block_network(options_of(bits), weights, here)


def torch_block(weights):
    """The oracle; without torch the test is skipped."""
    pytest.importorskip("torch")
    from tests.oracles.block import TorchBlock

    return TorchBlock(weights, target())


@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_those_of_the_formulas(kind):
    """Keys and values are fp16 here."""
    weights = weights_of(KINDS[kind])
    ours = drafts(fill(native(weights)))
    theirs = drafts(fill(torch_block(weights)))
    for (tokens, parents, chances), (tokens2, parents2, chances2) in zip(ours, theirs, strict=True):
        assert (tokens, parents) == (tokens2, parents2)
        assert chances == pytest.approx(chances2, abs=5e-3)
    assert any(max(tree[1]) > 1 for tree in ours)
    assert any(len(set(tree[1])) < len(tree[1]) for tree in ours)  # not only chains


@pytest.mark.parametrize("kind", KINDS)
def test_rows_fed_at_once_or_one_by_one_give_the_same_bits(kind):
    weights, model = weights_of(KINDS[kind]), target("q8_0")
    expected = drafts(fill(native(weights, model, 8)))
    for step in (1, 7, 64):
        network = fill(native(weights, model, 8), step=step)
        assert drafts(network) == expected
        assert drafts(network) == expected  # the block leaves nothing behind
        for slot in (2, 0, 1):
            assert drafts(network, [slot]) == [expected[slot]]


@pytest.mark.parametrize("num_steps", range(1, 9))
@pytest.mark.parametrize("form", ["q8_0", "f32"])
def test_a_sequence_gets_the_same_draft_alone_and_in_company(form, num_steps):
    """Rows of the head that are not a multiple of eight are read one sequence after another."""
    network = fill(native(weights_of(replace(DFLASH, block_size=9)), target(form), 8))
    together = drafts(network, num_steps=num_steps)
    for slot in range(3):
        assert drafts(network, [slot], num_steps=num_steps) == [together[slot]]


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_drafts_do_not_depend_on_threads_and_instruction_set(bits):
    weights = weights_of(DSPARK)
    expected = drafts(fill(native(weights, target("q8_0", isa="portable"), bits)))
    for isa in _native.runnable_isas():
        for num_threads in (1, 2, 3):
            model = target("q8_0", isa=isa, num_threads=num_threads)
            assert drafts(fill(native(weights, model, bits))) == expected


def test_fewer_steps_guess_the_first_places():
    network = fill(native(weights_of(DFLASH)))
    for tokens, parents, _ in drafts(network, num_steps=2):
        depths = [0]
        for parent in parents:
            depths.append(depths[parent + 1] + 1)
        assert max(depths) == 2, tokens


def test_a_block_is_filled_once_for_all_steps_of_a_draft():
    """What joins later, after another draft began, has a block of its own."""
    network = fill(native(weights_of(DSPARK)))
    first = drafts(network)
    tokens, states = text(5, 3)
    prefill(network, 0, tokens, states)
    second = drafts(network)
    assert second[0] != first[0]
    assert second[1:] == first[1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 18}, "a block must guess 1 to 16 tokens"),
        ({"mask_token_id": VOCAB}, "the mask is outside the vocabulary"),
        ({"intermediate_size": 90}, "MLP size must be multiples of 16"),
    ],
)
def test_shapes_that_cannot_run_are_refused(change, message):
    from forerun.core.errors import LoadError

    with pytest.raises(LoadError, match=message):
        native(weights_of(replace(DFLASH, **change)))
