"""Random networks of every kind, the tiny targets that they draft for, and what they are fed and draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from forerun.core.random import Noise
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.drafters.dflash import block_network
from forerun.drafters.dflash.config import BlockConfig
from forerun.drafters.eagle3 import eagle_network
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.drafters.medusa.config import MedusaConfig
from forerun.drafters.medusa.drafting import medusa_network
from forerun.drafters.mlp_speculator.config import MLPSpeculatorConfig
from forerun.drafters.mlp_speculator.drafting import recurrent_network
from forerun.drafters.mlp_speculator.files import RecurrentWeights
from forerun.model.backends.native import load as load_native
from forerun.model.config import RopeConfig
from forerun.weights.stored import stored_floats
from tests.arrays import normal
from tests.native.models import GATED, VOCAB, random_weights
from tests.oracles.growth import Solo, TreeNoise, native_noises
from tests.oracles.growth import draft as drafted

WIDTH = GATED.hidden_size
TOKENS = np.arange(0, VOCAB, 3)
MAX_LEN = 200
LENGTHS = (5, 70, 130)  # one, two and three chunks of attention
NOISES = (TreeNoise(Noise(5), 30), TreeNoise(Noise(6), 9, temperature=0.8, top_p=0.95), None)
RECURRENT = {
    "lstm": {"cell": "lstm", "tie_lstm_embs": True},
    "lstm, a map for each gate": {"cell": "lstm"},
    "lstm, its own embedding": {"cell": "lstm", "target_embedding": False},
    "mlp": {},
    "mlp, scaled, all tokens, wide": {"scale_input": True, "tokens": None, "inner_dim": 96, "target_head": False},
    "mlp, each depth its own": {"tie_weights": False, "target_embedding": False, "target_head": False},
}  # fmt: skip
EAGLE = Eagle3Config(
    vocab_size=VOCAB,
    draft_vocab_size=len(TOKENS),
    hidden_size=WIDTH,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    layers=(0, 1, 1),
    target_head=True,
)
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
OWN = {"target_head": False, "target_embedding": False}


def weights_of(*, tokens=TOKENS, **options) -> RecurrentWeights:
    """A random network of three depths; with `target_head` the target's rows are its head."""
    chosen = {
        "inner_dim": WIDTH,
        "scale_input": False,
        "target_embedding": True,
        "target_head": True,
    }
    config = MLPSpeculatorConfig(VOCAB, WIDTH, n_predict=3, **{**chosen, **options})
    tensors = {}
    for i, (name, shape) in enumerate(config.shapes().items()):
        if name.startswith("head_map"):
            continue
        rows = len(tokens) if name.startswith("head") and tokens is not None else shape[0]
        values = normal(rows, *shape[1:], seed=100 + i)
        is_norm, scale = len(shape) == 1, 2 if name.startswith("head") else 8
        values = values / 4 + (not name.endswith("bias")) if is_norm else values / scale
        tensors[name] = stored_floats(name, values)
    return RecurrentWeights(config, tensors, tokens, (1.0, 0.8))


def network_of(config: Any, seed: int = 500) -> TrainedNetwork[Any]:
    """A random network of another kind, whose shapes its configuration lists."""
    tensors = {}
    for i, (name, shape) in enumerate(config.shapes().items()):
        values = normal(*shape, seed=seed + i) / (4 if "norm" in name else 6)
        tensors[name] = stored_floats(name, 1 + values if "norm" in name else values)
    tokens = TOKENS if config.draft_vocab_size < VOCAB else None
    return TrainedNetwork(config, tensors, tokens, (1.0, 0.7))


def target(dtype="f32", **options):
    return load_native(GATED, random_weights(GATED, dtype), **{"num_threads": 1, **options})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkOptions):
    """Of any number of bits, 32: nothing is rounded."""

    num_bits: int

    @property
    def bits(self):
        return self.num_bits


def options_of(bits):
    return Options(model="", num_bits=bits)


@dataclass(frozen=True)
class Kind:
    """A network of the table: how it is made, run and checked, and how far it drafts here."""

    weights: Callable[[], Any]
    make: Callable[..., Any]
    oracle: str
    num_nodes: int
    num_steps: int
    atol: float
    """How far chances may be from the oracle's: with layers, keys and values are fp16."""
    has_layers: bool = True
    """Whether it reads the states of a text's rows, by slot, or one state alone."""

    def native(self, model: Any = None, bits: int = 32) -> Any:
        """Its kernels, of any number of bits, 32: nothing is rounded."""
        here = Target(model or target(), None, 3, MAX_LEN)
        return self.make(options_of(bits), self.weights(), here)

    def in_torch(self) -> Any:
        """Its oracle; without torch the test is skipped."""
        pytest.importorskip("torch")
        from tests.oracles import block, networks

        given = (self.weights(), target(), *([MAX_LEN] if self.oracle == "TorchEagle" else []))
        return getattr(block if self.oracle == "TorchBlock" else networks, self.oracle)(*given)

    def begun(self, network: Any, step: int = 1000) -> Any:
        """A network that has read three texts, if it reads texts, so many rows at a time."""
        return fill(network, step=step) if self.has_layers else network

    def drafts(self, network: Any, rows=(0, 1, 2), num_steps: int | None = None) -> Any:
        """With layers, slot 0 samples, 1 too at another temperature, 2 is greedy; others are greedy."""
        tokens = [0 if self.has_layers else (7 * row + 1) % VOCAB for row in rows]
        request = Solo(tokens, [self.num_nodes] * len(rows), num_steps or self.num_steps, 0.0)
        request.rows = [*rows]
        if self.has_layers:
            noises = [NOISES[row] for row in rows]
            request.noises = native_noises(noises) if hasattr(network, "asked") else noises
        else:
            request.states = hidden(20)
        return drafted(network, request)


def recurrent_kind(options):
    return Kind(
        lambda: weights_of(**options), recurrent_network, "TorchRecurrent", 9, 5, 1e-4, False
    )


def medusa_kind(**options):
    config = MedusaConfig(VOCAB, WIDTH, 3, 2, len(TOKENS), **options)
    return Kind(lambda: network_of(config), medusa_network, "TorchMedusa", 9, 3, 1e-4, False)


def eagle_kind(**changes):
    config = replace(EAGLE, **changes)
    return Kind(lambda: network_of(config), eagle_network, "TorchEagle", 8, 6, 5e-3)


def block_kind(config):
    return Kind(lambda: network_of(config, 700), block_network, "TorchBlock", 9, 8, 5e-3)


NETWORKS = {
    **{f"recurrent, {name}": recurrent_kind(options) for name, options in RECURRENT.items()},
    "medusa, the target's head": medusa_kind(target_head=True),
    "medusa, heads of its own": medusa_kind(),
    "eagle 3.1": eagle_kind(),
    "eagle 3.0, its own embedding and head": eagle_kind(fc_norm=False, norm_output=False, **OWN),
    "eagle, narrower than its target": eagle_kind(hidden_size=64, target_hidden_size=WIDTH, **OWN),
    "eagle, norms of q and k": eagle_kind(qk_norm=True, norm_before_residual=True),
    "dflash": block_kind(DFLASH),
    "dspark": block_kind(DSPARK),
    "a window, later rows unseen": block_kind(
        replace(DFLASH, windows=(33, 0), bidirectional=(False, True))
    ),
    "one layer": block_kind(replace(DSPARK, windows=(0,), bidirectional=(True,), block_size=12)),
    "a block of nine": block_kind(replace(DFLASH, block_size=9)),
}


def recurrent(weights, model, bits):
    """Its kernels."""
    return recurrent_network(options_of(bits), weights, Target(model, None, 3, MAX_LEN))


def hidden(num_rows):
    return normal(num_rows, WIDTH, seed=num_rows)


def text(slot, length):
    """Random tokens and the states of three of the target's layers."""
    tokens = np.random.default_rng(slot).integers(0, VOCAB, length).tolist()
    return tokens, normal(length, 3 * WIDTH, seed=slot)


def prefill(network, *rows):
    getattr(network, "native", network).prefill(*rows)


def fill(network, lengths=LENGTHS, step=1000):
    for slot, length in enumerate(lengths):
        tokens, states = text(slot, length)
        for i in range(0, length, step):
            prefill(network, slot, tokens[i : i + step], states[i : i + step])
    return network
