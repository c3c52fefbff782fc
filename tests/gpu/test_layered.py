"""EAGLE-3, block drafters and MTP beside a model on a device: their trees are those beside the CPU's, bit for bit.

A tree's probabilities are compared too, which are made of all logits of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from forerun.core.random import Noise
from forerun.core.types import Draft, GuessTree, Outcome, Seq
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.slots import SlotNetwork
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.drafters.dflash import Options as BlockOptions
from forerun.drafters.dflash import block_network
from forerun.drafters.dflash.config import BlockConfig
from forerun.drafters.eagle3 import Options as EagleOptions
from forerun.drafters.eagle3 import eagle_network
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.drafters.mtp import MtpHead
from forerun.drafters.mtp import Options as MtpOptions
from forerun.gpu import load as room
from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.graphs import Graphs
from forerun.model.backends.native import load as load_native
from forerun.model.config import RopeConfig
from forerun.model.random_model import random_config, random_weights
from forerun.weights.stored import stored_floats
from tests.drafters.helpers import SAMPLED, WANTED
from tests.gpu.oracle import DEVICE
from tests.oracles.growth import Solo, TreeNoise, draft, native_noises

LLAMA = random_config(num_layers=4)
IDS = np.arange(0, LLAMA.vocab_size, 2)
SIZES = {
    "vocab_size": LLAMA.vocab_size,
    "draft_vocab_size": len(IDS),
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "layers": (0, 1, 3),
}
EAGLE = Eagle3Config(**SIZES, hidden_size=LLAMA.hidden_size, rope_theta=1e4)
OLDER = {"fc_norm": False, "norm_output": False, "qk_norm": True, "norm_before_residual": True}
OWN = {"target_embedding": False, "hidden_size": 64, "target_hidden_size": LLAMA.hidden_size}
EAGLES = {
    "three norms": EAGLE,
    "as SafeAILab's": replace(EAGLE, **OLDER),
    "one norm, the target's head": replace(
        EAGLE, fc_norm=False, norm_before_fc=True, target_head=True
    ),
    "wider, embeddings of its own": replace(EAGLE, **OWN),
}
DFLASH = BlockConfig(
    **SIZES,
    hidden_size=LLAMA.hidden_size,
    rope=RopeConfig(1e4, 16),
    block_size=6,
    mask_token_id=7,
    sample_from_anchor=False,
    windows=(0, 40),
    bidirectional=(True, True),
)
BLOCKS = {
    "dflash": DFLASH,
    "one layer, causal": replace(DFLASH, windows=(70,), bidirectional=(False,)),
    "dspark": replace(DFLASH, sample_from_anchor=True, markov_rank=32),
    "with confidence": replace(DFLASH, markov_rank=32, has_confidence=True),
}
NOISES = native_noises([TreeNoise(Noise(3), 40), TreeNoise(Noise(4, 1), 7, 0.7, 0.9)])


@cache
def targets() -> tuple[Target, Target]:
    """A model on the device and on the CPU."""
    weights = [(n, stored_floats(n, x)) for n, x in random_weights(0, LLAMA).items()]
    models = room.load(LLAMA, weights, device=DEVICE), load_native(LLAMA, weights, num_threads=2)
    return tuple(Target(model, None, 2, 160) for model in models)


def trained(config: Eagle3Config | BlockConfig) -> TrainedNetwork:
    """A network of random weights, norms among them."""
    source = np.random.default_rng(5)
    tensors = {
        name: stored_floats(name, source.standard_normal(shape, np.float32) / 4 + (len(shape) < 2))
        for name, shape in config.shapes().items()
    }
    tensors |= {n: t.changed(lambda x: x - 1) for n, t in tensors.items() if n == "confidence"}
    return TrainedNetwork(config, tensors, IDS)


def compare(
    on_device: SlotNetwork, on_cpu: SlotNetwork, config: Eagle3Config | BlockConfig, quant: str
) -> None:
    """Their trees are the same, by kernels launched one by one or as a graph; one is on the device."""
    layers = on_device.on_device.layers
    layers.graphs = Graphs(layers) if quant == "int8" else None
    assert trees(on_device, config) == trees(on_cpu, config)
    assert on_cpu.on_device is None


def trees(network: SlotNetwork, config: Eagle3Config | BlockConfig) -> list[list[GuessTree]]:
    """Drafts of one sequence and of two, greedy and sampled, over the end of a chunk and a reused prefix."""
    width = len(config.layers) * LLAMA.hidden_size
    states = np.random.default_rng(1).standard_normal((80, width), np.float32)
    tokens = [i % LLAMA.vocab_size for i in range(80)]

    def feed(slot: int, first: int, stop: int) -> int:
        network.native.prefill(slot, tokens[first:stop], states[first:stop])
        return tokens[stop - 1]

    def grown(last: Sequence[int], noises: Sequence[object] = ()) -> list[GuessTree]:
        rows = [0, 1][: len(last)]
        return draft(network, Solo(last, [9] * len(last), 5, 0.0, noises=noises, rows=rows))

    feed(0, 0, 62)
    network.native.reuse(1, 0, 61)
    last = [feed(0, 62, 67), feed(1, 70, 71)]
    found = [grown(last), grown(last, NOISES)]
    network.native.reuse(0, 0, 30)
    network.native.clear(1)
    return [*found, grown([feed(0, 40, 41)]), grown([feed(0, 41, 43), feed(1, 5, 8)], NOISES)]


@pytest.mark.parametrize(
    ("kind", "quant"),
    [
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in zip(EAGLES, ("int4", "int8") * 2)
        ),
        ("three norms", "none"),
        ("one norm, the target's head", "int4"),
    ],
)
def test_a_layer_behind_the_target_drafts_what_it_drafts_on_the_cpu(kind: str, quant: str) -> None:
    config, options = EAGLES[kind], EagleOptions(model="untrained", quant=quant)
    networks = (eagle_network(options, trained(config), each) for each in targets())
    compare(*networks, config, quant)


@pytest.mark.parametrize(
    ("kind", "quant"),
    [
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in zip(BLOCKS, ("int4", "int8") * 2)
        ),
        ("dspark", "int4"),
    ],
)
def test_a_block_is_filled_as_on_the_cpu(kind: str, quant: str) -> None:
    config, options = BLOCKS[kind], BlockOptions(model="untrained", quant=quant)
    networks = (block_network(options, trained(config), each) for each in targets())
    compare(*networks, config, quant)


@pytest.mark.parametrize(("quant", "draft_vocab"), [("int4", "12"), ("int8", "full")])
def test_a_head_for_the_token_after_the_next_drafts_as_on_the_cpu(
    quant: str, draft_vocab: str
) -> None:
    options = MtpOptions(
        model="untrained", num_draft=6, min_chance=0, quant=quant, draft_vocab=draft_vocab
    )
    on_device, on_cpu = (MtpHead(options, each) for each in targets())
    layers = on_device.layers
    assert all(isinstance(each, GpuDecoder) for each in (layers.fc, layers.block, layers.text))
    assert heads_trees(on_device) == heads_trees(on_cpu)


def heads_trees(head: MtpHead) -> list[Draft]:
    """Drafts of two sequences, one of which samples, behind their prompts and what was said then."""
    states = np.random.default_rng(2).standard_normal((20, LLAMA.hidden_size), np.float32)
    seqs = [Seq(i, [3, 5, 7, 9, 1][i:], params, 4) for i, params in enumerate((WANTED, SAMPLED))]
    for seq in seqs:
        seq.tokens.append(11)
        head.begin(seq, Outcome((), (11,), hidden=states[: len(seq.tokens) - 1]))
    found = head.propose(seqs, [6, 6])
    for seq in seqs:
        seq.tokens += [2, 8]
    head.observe(seqs, found, [Outcome((0,), (2, 8), hidden=states[6:13])] * 2)
    return [*found, *head.propose(seqs, [6, 4])]
