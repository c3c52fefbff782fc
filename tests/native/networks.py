"""Random recurrent networks, the tiny targets that they draft for, and rows of networks with layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.core.random import Noise
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.networks.slots import SlotNetwork
from forerun.drafters.mlp_speculator.config import MLPSpeculatorConfig
from forerun.drafters.mlp_speculator.drafting import recurrent_network
from forerun.drafters.mlp_speculator.files import RecurrentWeights
from forerun.model.backends.native import load as load_native
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
KINDS = {
    "lstm": {"cell": "lstm", "tie_lstm_embs": True},
    "lstm, a map for each gate": {"cell": "lstm"},
    "lstm, its own embedding": {"cell": "lstm", "target_embedding": False},
    "mlp": {},
    "mlp, scaled, all tokens, wide": {"scale_input": True, "tokens": None, "inner_dim": 96, "target_head": False},
    "mlp, each depth its own": {"tie_weights": False, "target_embedding": False, "target_head": False},
}  # fmt: skip


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


def drafts(network, slots=(0, 1, 2), *, num_nodes, num_steps):
    """Slot 0 samples, 1 too at another temperature, 2 is greedy."""
    noises = [NOISES[slot] for slot in slots]
    if isinstance(network, SlotNetwork):
        noises = native_noises(noises)
    request = Solo([0] * len(slots), [num_nodes] * len(slots), num_steps, 0.0)
    request.rows, request.noises = [*slots], noises
    return drafted(network, request)
