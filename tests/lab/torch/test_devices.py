"""Nothing of the torch decoder stays on the CPU when its weights are elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from forerun.core.batch import Batch, Segment
from forerun.lab.torch import decoder as decoders
from forerun.lab.torch.decoder import Decoder
from forerun.model.shapes import weight_shapes
from tests.arrays import assert_close
from tests.lab.torch.decoders import random_decoder
from tests.model.test_row_law import TORCH
from tests.native.models import logits_of

TOKENS = tuple(np.random.default_rng(0).integers(0, 61, decoders.TILE + 140).tolist())
PARENTS = (-1, 0, 0, 1, 2, 2, -1, 6, 3, 8)
CHOOSES_EXPERTS = {kind for kind, config in TORCH.items() if any(x.experts for x in config.layers)}
"""Which experts are computed depends on numbers, of which `meta` has none."""


class OneDevice(TorchDispatchMode):
    """Counts operations, and refuses one that gets tensors of several devices; to copy between two is allowed."""

    num_ops = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.num_ops += 1
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {tensor.device.type for tensor in given}
        if func is not torch.ops.aten._to_copy.default:
            assert len(devices) < 2, f"{func} gets tensors on {sorted(devices)}"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", sorted(TORCH.keys() - CHOOSES_EXPERTS))
def test_all_operations_are_on_the_device_of_the_weights(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TORCH[kind]
    shapes = weight_shapes(config)
    weights = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    if config.norm == "layer":
        weights |= {f"{n}.bias": torch.empty_like(weights[n]) for n in shapes if "norm" in n}
    decoder = Decoder(config, weights)
    monkeypatch.setattr(  # the last step, from the device to NumPy
        decoders, "_host", lambda values: np.zeros(values.shape, np.float32)
    )
    cache = decoder.new_cache(2, 256)
    rest = len(TOKENS) - len(PARENTS)
    with OneDevice() as seen:
        for slot in range(2):
            chain = Segment(slot, 0, TOKENS[:rest], certain=rest)
            decoder.head(decoder.forward(Batch((chain,)), cache).last)
            cache.keep(slot, range(rest))
        tree = Segment(1, rest, TOKENS[rest:], PARENTS)
        decoder.forward(Batch((Segment(0, rest, TOKENS[rest:]), tree)), cache, (0,))
        cache.keep(1, [0, 1, 3])
    assert seen.num_ops > 100


@pytest.fixture(params=sorted(TORCH))
def cpu(request: pytest.FixtureRequest) -> Decoder:
    """A model of each kind."""
    return random_decoder(TORCH[request.param])


@pytest.fixture
def gpu(cpu: Decoder) -> Decoder:
    """The same one on a CUDA device."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return Decoder(cpu.config, {name: weight.cuda() for name, weight in cpu.weights.items()})


@pytest.mark.gpu
def test_on_a_gpu_the_row_law_holds_and_the_numbers_are_the_cpus(
    cpu: Decoder, gpu: Decoder
) -> None:
    read = Segment(0, 0, TOKENS, certain=len(TOKENS))
    whole = logits_of(gpu, gpu.new_cache(1, len(TOKENS)), read)
    on_cpu = logits_of(cpu, cpu.new_cache(1, len(TOKENS)), read)
    assert_close(whole, on_cpu, atol=2e-3, rtol=2e-3)
    cache, first = gpu.new_cache(1, len(TOKENS)), 0
    sizes = [*range(1, 17), *[1] * len(TOKENS)]
    for size in sizes:  # passes of 1 to 16 rows, then of one
        tokens = TOKENS[first : first + size]
        if not tokens:
            break
        logits = logits_of(gpu, cache, Segment(0, first, tokens, certain=len(tokens)))
        assert np.array_equal(logits, whole[first : first + len(tokens)]), f"{size} rows"
        cache.keep(0, range(len(tokens)))
        first += size


@pytest.mark.gpu
def test_on_a_gpu_a_row_of_a_tree_is_that_of_its_path(gpu: Decoder) -> None:
    base = len(TOKENS) - len(PARENTS)
    cache = gpu.new_cache(1, len(TOKENS) + len(PARENTS))
    logits_of(gpu, cache, Segment(0, 0, TOKENS[:base], certain=base))
    cache.keep(0, range(base))
    tree = logits_of(gpu, cache, Segment(0, base, TOKENS[base:], PARENTS))
    for node in range(len(PARENTS)):
        path = [node]
        while PARENTS[path[0]] >= 0:
            path.insert(0, PARENTS[path[0]])
        chain = Segment(0, base, tuple(TOKENS[base + i] for i in path))
        assert np.array_equal(logits_of(gpu, cache, chain)[-1], tree[node]), f"node {node}"
