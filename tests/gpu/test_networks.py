"""Networks whose rows the device computes draft the CPU's trees, with its probabilities, bit for bit."""

from __future__ import annotations

import gc
import importlib
import weakref
from pathlib import Path

import pytest
import torch

from forerun.core.errors import LoadError
from forerun.gpu import load as room
from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.matrices import Matrix
from forerun.gpu.networks import KINDS, recurrence, recurrent
from tests.gpu.oracle import DEVICE
from tests.native.models import GATED, VOCAB, random_weights
from tests.native.networks import NETWORKS, NOISES, hidden, target
from tests.oracles.growth import Solo, draft, native_noises

STATES = [name for name, kind in NETWORKS.items() if not kind.has_layers]
FLOATS = ["recurrent, lstm, a map for each gate", "medusa, the target's head"]
WEIGHTS = random_weights(GATED, "q8_0")


@pytest.fixture(scope="module")
def device() -> GpuDecoder:
    return room.load(GATED, WEIGHTS.items(), device=DEVICE)


def trees(network, rows=(0, 1, 2), noises=NOISES):
    """What is drafted for some states; two of the three sequences sample."""
    request = Solo([(7 * row + 1) % VOCAB for row in rows], [9] * len(rows), 5, 0.0)
    request.rows, request.states = [*rows], hidden(20)
    request.noises = native_noises(noises)
    return draft(network, request)


@pytest.mark.parametrize(
    ("name", "bits"), [*((each, 4) for each in STATES), *((each, 32) for each in FLOATS)]
)
def test_trees_are_those_of_the_cpu(device: GpuDecoder, name: str, bits: int) -> None:
    ours, theirs = (NETWORKS[name].native(model, bits) for model in (device, target("q8_0")))
    assert type(ours.native) in KINDS.values()
    expected = trees(theirs)
    assert trees(ours) == expected
    assert trees(ours, [1], NOISES[1:2]) == expected[1:2]  # and the draft before leaves nothing
    assert all(max(parents) >= 0 for _, parents, _ in expected)
    assert "host_decoder" not in vars(device)  # the host has no copy of the embedding and the head


@pytest.mark.parametrize("name", STATES)
def test_graphs_of_steps_draft_the_same_over_buffers_that_stay(
    device: GpuDecoder, name: str
) -> None:
    """Of one sequence, and of three, for which new ones are made; then of one and of three with the same ones."""
    ours, theirs = (NETWORKS[name].native(model, 4) for model in (device, target("q8_0")))
    network, expected = ours.native, trees(theirs)

    def places() -> dict[str, int]:
        return {key: each.data_ptr() for key, each in network.buffers.kept.items()}

    network.graphs = {}
    assert trees(ours, [1], NOISES[1:2]) == expected[1:2]
    first = [*network.graphs.values()]
    assert trees(ours) == expected
    assert not any(old is new for old in first for new in network.graphs.values())
    network.graphs.clear()
    network.buffers.kept.clear()
    assert trees(ours, [1], NOISES[1:2]) == expected[1:2]
    before = places()
    assert trees(ours) == expected
    assert places() == before
    assert {rows for rows, *_ in network.graphs} >= {1, 4}


def test_mapped_embeddings_are_rounded_as_the_cpu_keeps_them(device: GpuDecoder) -> None:
    network = NETWORKS["recurrent, lstm"].native(device, 8)
    rounded = trees(network)
    network.native._keeps_mapped = False
    assert trees(network) != rounded


MUTANTS = {
    "what a token adds is fused": (
        "tl.load(at, i < P, 0.0) + token_weight * e",
        "tl.fma(token_weight, e, tl.load(at, i < P, 0.0))",
    ),
    "what a cell keeps is fused": (
        "tl.where(above >= 0, c + kept, c)",
        "tl.where(above >= 0, tl.fma(before, sigmoid(tl.load(own + i, i < P, 0.0)), c), c)",
    ),
}
"""Changes of the kernel."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_kernel_is_found(
    device: GpuDecoder, mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = MUTANTS[mutant]
    network = NETWORKS["recurrent, lstm"].native(device, 32)  # codes would hide a last bit
    expected = trees(network, [0], NOISES[:1])
    source = Path(recurrence.__file__).read_text()
    assert source.count(old) == 1
    name = f"broken_recurrence_{len(new)}"
    (tmp_path / f"{name}.py").write_text(source.replace(old, new))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(recurrent, "advance", importlib.import_module(name).advance)
    assert trees(network, [0], NOISES[:1]) != expected


def test_a_head_of_all_tokens_is_the_targets_own_and_is_counted_once(device: GpuDecoder) -> None:
    sizes = {}
    for tokens in ((), (0, 3), range(VOCAB)):
        network = KINDS["medusa"](device, 1, 1)
        if tokens:
            network.set_tokens([*tokens])
        network.take_head()
        sizes[len(tokens)] = network.nbytes() - 8 * len(tokens)
    head = device.head_of(None).nbytes()
    assert sizes == {0: 0, 2: 2 * head // VOCAB, VOCAB: head}


def test_a_network_goes_with_its_drafter(device: GpuDecoder) -> None:
    network = NETWORKS["medusa, the target's head"].native(device, 4)
    kernels = weakref.ref(network.native)
    del network
    gc.collect()
    assert kernels() is None


def test_a_network_that_does_not_fit_is_told_in_a_line(
    device: GpuDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Matrix, "pack", full)
    with pytest.raises(LoadError, match="has no memory for a network that drafts") as error:
        NETWORKS["recurrent, mlp"].native(device, 4)
    assert "\n" not in str(error.value)


def test_weights_of_other_shapes_are_named(device: GpuDecoder) -> None:
    network = KINDS["medusa"](device, 1, 1)
    with pytest.raises(ValueError, match=r"weight block\.0\.0 is missing"):
        network.check()
