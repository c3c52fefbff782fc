"""Training on a device, without one: its way on the CPU learns as the CPU's own does, and no tensor is elsewhere.

Fake tensors of a made-up kind of device compute nothing, but know their device as CUDA's would: an operation that
mixes it with the CPU raises.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from forerun.core.errors import ConfigError
from forerun.lab.torch.decoder import Decoder
from forerun.lab.train import batches, draft_model
from forerun.lab.train.batches import PackedPiece, TrainBatch
from forerun.lab.train.device_states import DeviceStateReader, WholeTexts
from forerun.lab.train.learners import Kind, Learner, new_learner
from forerun.lab.train.states import StateReader
from forerun.lab.train.trainer import CHECKPOINT, Trainer
from forerun.model.config import ModelConfig
from forerun.model.random_model import random_config, random_weights
from tests.lab.torch.random_tensors import random_tensors
from tests.lab.train.test_trainer import DEPTH, IDS, SETTINGS, SHORT, VOCAB, new, run, texts
from tests.tiny import tiny_model

CARD = "card"
KINDS = ("mlp_speculator", "eagle3", "medusa")
SHAPE = random_config(vocab_size=VOCAB, num_layers=3)
LAYERS = (0, 2)
TARGET = tiny_model(1, sharpness=3.0, vocab_size=VOCAB, num_layers=3)


def whole(shape: ModelConfig = SHAPE, device: str = "cpu") -> WholeTexts:
    weights = random_tensors(1, shape, sharpness=3.0)
    return WholeTexts(shape, {name: weight.to(device) for name, weight in weights.items()})


def readers(folder, layers: tuple[int, ...] = LAYERS, *, all_rows: bool = True):
    """The CPU's, and the device's on the CPU."""
    what = {"all_rows": all_rows, "max_len": 64, "max_nbytes": 1 << 22}
    served = StateReader(TARGET, layers, folder=folder / "served", **what)
    return served, DeviceStateReader(TARGET, layers, whole(), folder=folder / "device", **what)


def test_states_are_those_of_the_reference_and_near_the_kernels(tmp_path) -> None:
    served, device = readers(tmp_path)
    reference = StateReader(
        Decoder(SHAPE, random_tensors(1, SHAPE, sharpness=3.0)),
        *(LAYERS,), all_rows=True, max_len=64, folder=tmp_path / "torch", max_nbytes=0,
    )  # fmt: skip
    for reply in texts(3):
        states, exact, kernels = device(reply), reference(reply), served(reply)
        for name in ("last", "aux", "log_normaliser"):
            found = getattr(states, name).float()
            assert torch.allclose(found, getattr(exact, name).float(), atol=4e-3, rtol=2e-3)
            near = getattr(kernels, name).float()
            assert float((found - near).square().mean() / near.square().mean()) < 1e-3
        assert torch.equal(states.best, exact.best)
        assert float((states.best == kernels.best).float().mean()) > 0.95
    again = DeviceStateReader(
        *(TARGET, LAYERS, whole()), all_rows=True, max_len=64, folder=device.folder, max_nbytes=0
    )
    assert torch.equal(again(texts(1)[0]).last, device(texts(1)[0]).last)
    assert not again.num_computed, "it is in the folder"


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_the_devices_way_is_near_the_cpus(kind, tmp_path) -> None:
    served = run(new(tmp_path / "served", kind, settings=SHORT))
    learner = new(tmp_path / "begun", kind, settings=SHORT).learner
    _, read = readers(tmp_path, learner.layers, all_rows=learner.piece is None)
    origin = {"kind": kind}
    device = run(Trainer(learner, TARGET, IDS, SHORT, read, tmp_path / "device", origin=origin))
    for one, other in zip(served.progress.history, device.progress.history, strict=True):
        assert one["tokens"] == other["tokens"]
        assert other["loss"] == pytest.approx(one["loss"], rel=0.02)
    last, near = served.acceptance(texts(8, 1)), device.acceptance(texts(8, 1))
    assert near.tau == pytest.approx(last.tau, abs=0.05)


def test_a_run_goes_on_on_the_other_device(tmp_path) -> None:
    """Its checkpoint is of the host, and what it multiplies in may be another type."""
    began = run(new(tmp_path, settings=replace(SHORT, bf16=True)), 16)
    saved = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert {weight.device.type for weight in saved["net"].values()} == {"cpu"}
    learner = new(tmp_path / "other", settings=SHORT).learner
    _, read = readers(tmp_path, all_rows=False, layers=())
    on = Trainer(learner, TARGET, IDS, SHORT, read, tmp_path, origin={"kind": "mlp_speculator"})
    done = run(on)
    assert done.progress.tokens >= SHORT.tokens
    assert done.progress.history[: saved["progress"]["step"]] == saved["progress"]["history"]
    assert began.progress.step > saved["progress"]["step"]


def test_a_family_that_is_not_read_there_is_refused() -> None:
    shape = replace(SHAPE, per_layer_width=32)
    with pytest.raises(ConfigError, match="training on a device of llama is not supported"):
        WholeTexts(shape, {"embed": torch.zeros(1, 1)})


@pytest.fixture(scope="module")
def card() -> str:
    _setup_privateuseone_for_python_backend(CARD)
    torch.card.get_amp_supported_dtype = lambda: [
        torch.bfloat16
    ]  # asked for where none is used, too
    return CARD


def on_card(net: nn.Module) -> nn.Module:
    """Its weights on the device: `to` cannot exchange those of fake tensors."""
    for module in net.modules():
        for name, weight in [*module._parameters.items()]:
            if weight is not None:
                moved = nn.Parameter(weight.detach().to(CARD), weight.requires_grad)
                module._parameters[name] = moved
    return net


def batch_of(width: int, layers: int) -> TrainBatch:
    def numbers(*shape: int) -> Tensor:
        return torch.zeros(shape).to(CARD)

    rows = 40
    ids = torch.zeros(rows, dtype=torch.int64).to(CARD)
    at = torch.zeros(30, dtype=torch.int64).to(CARD)
    pieces = (PackedPiece(0, 2, 17), PackedPiece(20, 21, 36))
    states = numbers(rows, width), numbers(rows, layers * width)
    return TrainBatch(*states, ids, ids, ids, numbers(rows), at, pieces)


class OfCard:
    """A model whose embeddings come from the host."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config


@pytest.fixture
def embedded(monkeypatch) -> None:
    def rows(self: TrainBatch, model: object) -> Tensor:
        return torch.zeros(len(self.tokens), SHAPE.hidden_size).to(CARD)

    monkeypatch.setattr(TrainBatch, "embedded", rows)


def learners(kind: str) -> Learner:
    if kind != "draft_model":
        return new_learner(Kind(kind, DEPTH), TARGET, IDS, {})
    weights = {n: torch.from_numpy(w) for n, w in random_weights(0, SHAPE).items()}
    shape = draft_model.DraftShape((0, 2), 0.1)
    return draft_model.DraftModelLearner(TARGET, DEPTH, shape, weights)


@pytest.mark.parametrize("kind", [*KINDS, "draft_model"])
@pytest.mark.parametrize("loss", ["kl", "lk", "ce"])
def test_no_tensor_of_a_step_is_elsewhere(kind, loss, card, embedded) -> None:
    learner = learners(kind)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for module in learner.net.modules():
            for name, weight in [*module._parameters.items()]:
                if weight is not None:
                    module._parameters[name] = nn.Parameter(mode.from_tensor(weight.detach()))
        on_card(learner.net)
        trainer = object.__new__(Trainer)
        trainer.learner, trainer.settings = learner, SETTINGS
        trainer.device = torch.device(CARD)
        trainer.head = torch.zeros(len(IDS), SHAPE.hidden_size).to(CARD)
        batch = batch_of(SHAPE.hidden_size, len(learner.layers))
        p = torch.zeros(40, len(IDS), dtype=torch.bfloat16).to(CARD)
        total, alphas = trainer._losses(batch, p, loss)
        assert {each.device.type for each in (total, *alphas)} == {CARD}
        assert (
            total.requires_grad
        )  # autograd has no queue for such a device; torch's own formulas stay where they are
        with pytest.raises(RuntimeError, match="same device"):
            total + torch.zeros(2)


def test_the_texts_own_tokens_are_where_the_batch_is(card) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert batches.own_tokens(batch_of(8, 0), IDS).device.type == CARD


def test_no_tensor_of_the_targets_states_is_elsewhere(card) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        weights = {n: torch.zeros(w.shape).to(CARD) for n, w in random_weights(0, SHAPE).items()}
        texts_ = WholeTexts(SHAPE, weights)
        last, aux = texts_.states(torch.zeros(40, dtype=torch.int64).to(CARD), LAYERS)
        normaliser, best = texts_.likeliest(last)
        rows = texts_.logits(last, torch.zeros(len(IDS), SHAPE.hidden_size).to(CARD))
        found = (last, aux, normaliser, best, rows)
        assert {each.device.type for each in found} == {CARD}
        assert aux.shape == (40, 2 * SHAPE.hidden_size)
