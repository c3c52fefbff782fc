"""EAGLE-3 networks that draft: one decoder layer behind the target, with keys and values of its own.

`drafters/eagle3/network.py` has the formulas and is what runs with a torch target; with a native one
`csrc/drafters/eagle_network.cpp` computes the same with int8 activations.

R rows, D width, V' tokens of the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.drafters.eagle3.network import Eagle3, Eagle3Config, Keys
from forerun.drafting import best_first
from forerun.drafting.base import NGramKind
from forerun.drafting.best_first import MAX_STEPS, DraftLimits, GuessTree, Step
from forerun.drafting.networks.native import fill, floats, load_errors
from forerun.drafting.ngram.ngram_model import AnyNGramModel
from forerun.drafting.tree_noise import TreeNoise, native_noises
from forerun.model.backends.native import NativeDecoder
from forerun.model.decoder import inverse_frequencies
from forerun.model.model import Model, head_matrix

_NATIVE = {
    "fc.weight": "fc",
    "midlayer.self_attn.q_proj.weight": "q",
    "midlayer.self_attn.k_proj.weight": "k",
    "midlayer.self_attn.v_proj.weight": "v",
    "midlayer.self_attn.o_proj.weight": "o",
    "midlayer.mlp.gate_proj.weight": "gate",
    "midlayer.mlp.up_proj.weight": "up",
    "midlayer.mlp.down_proj.weight": "down",
    "lm_head.weight": "head.0",
    "embed_tokens.weight": "emb.0",
    "midlayer.input_layernorm.weight": "input_norm",
    "midlayer.hidden_norm.weight": "hidden_norm",
    "midlayer.post_attention_layernorm.weight": "mlp_norm",
    "midlayer.self_attn.q_norm.weight": "q_norm",
    "midlayer.self_attn.k_norm.weight": "k_norm",
    "norm.weight": "norm",
    "input_norm.weight": "fc_norm",
    "fc_norm.0.weight": "fc_norm.0",
    "fc_norm.1.weight": "fc_norm.1",
    "fc_norm.2.weight": "fc_norm.2",
}


@dataclass(frozen=True, slots=True)
class EagleWeights:
    """A network's configuration and its tensors by the names of `Eagle3`."""

    config: Eagle3Config
    tensors: Mapping[str, Tensor]
    tokens: Tensor | None = None
    """The tokens of the head (V',) int64, ascending; None for all."""
    temperatures: tuple[float, ...] = (1.0,)
    """By depth, the last for all below: logits are divided by it before they become chances."""


def new_network(
    weights: EagleWeights, target: Model, num_slots: int, max_len: int, bits: int
) -> NativeEagle | TorchEagle:
    """Run on the native kernels where the target does. Raises LoadError naming the weight that is wrong."""
    if isinstance(target, NativeDecoder):
        return NativeEagle(weights, target, num_slots, max_len, bits)
    return TorchEagle(weights, target, max_len)


class NativeEagle:
    """Drafts natively, with the target's threads, its embedding, a copy of the rows of its head.

    Its methods are those of `TorchEagle`.
    """

    ngrams: NGramKind = "native"

    def __init__(
        self, weights: EagleWeights, target: NativeDecoder, num_slots: int, max_len: int, bits: int
    ) -> None:
        from forerun import _native

        c = weights.config
        with load_errors():
            network = _native.EagleNetwork(
                target.runtime,
                target.native,
                c.state_width,
                c.intermediate_size,
                c.num_attention_heads,
                c.num_key_value_heads,
                c.head_dim,
                c.norm_output,
                c.norm_before_residual,
                num_slots,
                max_len,
            )
            network.set_rope(floats(inverse_frequencies(c.rope)))
            fill(
                network,
                {_NATIVE[name]: tensor for name, tensor in weights.tensors.items()},
                target,
                bits=bits,
                eps=c.rms_norm_eps,
                tokens=weights.tokens,
                temperatures=weights.temperatures,
                takes_head=c.target_head,
            )
        self._native = network
        self._row_nbytes = 4 * c.num_key_value_heads * c.head_dim

    def clear(self, slot: int) -> None:
        """Forget the rows of a slot."""
        self._native.clear(slot)

    def reuse(self, slot: int, source: int, rows: int) -> None:
        """Begin a slot with the first rows of a slot, which may be the same; `feed` goes on from there."""
        self._native.reuse(slot, source, rows)

    def feed(self, slot: int, tokens: Sequence[int], states: Tensor) -> None:
        """Add rows: tokens, and the target's states (R, 3 x width) before them. Raises IndexError beyond `max_len`."""
        self._native.feed(slot, tokens, floats(states))

    def draft(
        self,
        slots: Sequence[int],
        num_nodes: Sequence[int],
        num_steps: int,
        min_chance: float,
        ngrams: AnyNGramModel | None = None,
        min_doubt: float = 0.0,
        noises: Sequence[TreeNoise | None] = (),
    ) -> list[GuessTree]:
        """Grow a tree below the last token that was fed of each slot; `ngrams` is what is known of each text."""
        limits = (min(num_steps, MAX_STEPS), min_chance)
        assert ngrams is None or not isinstance(ngrams, Sequence)
        native = native_noises(noises)
        return self._native.draft(slots, num_nodes, *limits, ngrams, min_doubt, native)

    def nbytes(self) -> int:
        """Count the packed weights, without the rows of the slots."""
        return self._native.nbytes()

    def row_nbytes(self) -> int:
        """Count a row in fp16."""
        return self._row_nbytes


@dataclass(slots=True)
class _Rows:
    """A slot: keys and values of the rows, and the last one's g and token."""

    keys: Keys | None = None
    length: int = 0
    token: int = 0
    g: Tensor | None = None


class TorchEagle:
    """Drafts in torch, for a target that runs there; the oracle of the native one. Nothing is rounded.

    A slot holds a sequence: keys and values of the rows that were fed.
    """

    ngrams: NGramKind = "python"

    def __init__(self, weights: EagleWeights, target: Model, max_len: int) -> None:
        self.weights, self.max_len = weights, max_len
        ids = torch.arange(target.config.vocab_size)
        device = target.embed(ids[:0]).device
        embedding = target.embed(ids.to(device)) if weights.config.target_embedding else None
        head = None
        if weights.config.target_head:
            head = head_matrix(target, ids if weights.tokens is None else weights.tokens, device)
        self.net = Eagle3(weights.config, embedding=embedding, head=head).to(device)
        state = {name: tensor.float().to(device) for name, tensor in weights.tensors.items()}
        self.net.load_state_dict(state, strict=False)
        self.net.requires_grad_(False)
        self.device = device
        self.slots: dict[int, _Rows] = {}

    def clear(self, slot: int) -> None:
        """Forget the rows of a slot."""
        self.slots.pop(slot, None)

    def reuse(self, slot: int, source: int, rows: int) -> None:
        """Begin a slot with the first rows of a slot, which may be the same; `feed` goes on from there."""
        held = self.slots[source].keys
        assert held is not None
        keys = Keys(held.keys[:, :, :rows], held.values[:, :, :rows])
        self.slots[slot] = _Rows(keys, rows)

    def feed(self, slot: int, tokens: Sequence[int], states: Tensor) -> None:
        """Add rows: tokens, and the target's states (R, 3 x width) before them. Raises IndexError beyond `max_len`."""
        rows = self.slots.setdefault(slot, _Rows())
        if rows.length + len(tokens) > self.max_len:
            raise IndexError("the sequence does not fit the cache")
        g = self.net.fuse(states.float().to(self.device))[None]
        rows.keys = self._run(rows.keys, g, tokens, rows.length)[2]
        rows.length, rows.token, rows.g = rows.length + len(tokens), tokens[-1], g[:, -1:]

    def draft(
        self,
        slots: Sequence[int],
        num_nodes: Sequence[int],
        num_steps: int,
        min_chance: float,
        ngrams: AnyNGramModel | None = None,
        min_doubt: float = 0.0,
        noises: Sequence[TreeNoise | None] = (),
    ) -> list[GuessTree]:
        """Grow a tree below the last token that was fed of each slot; `ngrams` is what is known of each text."""
        rows = [self.slots[slot] for slot in slots]
        after: list[dict[int, tuple[Tensor, Keys]]] = []

        def take_steps(number: int, steps: Sequence[Step]) -> list[tuple[Tensor, Tensor]]:
            found, here = [], {}
            for step in steps:
                own = rows[step.sequence]
                assert own.keys is not None
                assert own.g is not None
                if number:
                    g, keys = after[step.parent][step.sequence]
                else:  # the last fed row again, over those before it
                    g, keys = own.g, Keys(own.keys.keys[:, :, :-1], own.keys.values[:, :, :-1])
                g, logits, keys = self._run(keys, g, [step.token], own.length - 1 + step.depth)
                here[step.sequence] = g, keys
                found.append(
                    best_first.likeliest(
                        logits[0, -1], step, self.weights.tokens, self.weights.temperatures
                    )
                )
            after.append(here)
            return found

        tokens = [each.token for each in rows]
        limits = DraftLimits(min(num_steps, MAX_STEPS), min_chance, min_doubt)
        assert ngrams is None or isinstance(ngrams, Sequence)
        found = (tokens, num_nodes, limits, MAX_STEPS, take_steps, ngrams or ())
        return best_first.grow(*found, noises=noises)

    def nbytes(self) -> int:
        """Count the weights, the rows of the target's head included."""
        held = [*self.net.state_dict().values(), *self.net.buffers()]
        return sum(tensor.nbytes for tensor in (*held, *self.weights.tensors.values()))

    def row_nbytes(self) -> int:
        """Count what a row keeps: fp32, and a new cache while the old one is there."""
        config = self.weights.config
        return 2 * 8 * config.num_key_value_heads * config.head_dim

    def _run(
        self, keys: Keys | None, g: Tensor, tokens: Sequence[int], position: int
    ) -> tuple[Tensor, Tensor, Keys]:
        ids = torch.tensor([[*tokens]], device=self.device)
        positions = torch.arange(position, position + len(tokens), device=self.device)[None]
        return self.net.step(g, ids, positions, keys)
