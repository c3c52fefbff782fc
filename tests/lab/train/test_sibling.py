"""A network moved to a sibling of its model guesses what it guessed: exactly, where the sibling has the same states."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.core.errors import ConfigError
from forerun.lab.torch.decoder import Decoder
from forerun.lab.train import batches, sibling
from forerun.lab.train.batches import pack, whole_piece
from forerun.lab.train.learners import Kind, new_learner
from forerun.lab.train.replies import Reply
from forerun.lab.train.sibling import fit, least_squares
from forerun.lab.train.states import StateReader
from forerun.model.random_model import random_config
from tests.lab.torch.random_tensors import random_tensors

VOCAB, LENGTH, FIRST, DEPTH = 48, 40, 10, 3
SHAPE = replace(random_config(VOCAB), tied_head=False)
IDS = np.arange(VOCAB)[:-4]


def doubled(weights: dict[str, Tensor]) -> Decoder:
    """The same model twice as wide: each state stands in it twice, with the same logits."""
    wide = dict[str, Tensor]()
    for name, weight in weights.items():
        if name.endswith("norm"):
            wide[name] = weight.repeat(2)
        elif name.endswith((".o", ".down")):
            wide[name] = weight.repeat(2, 1)
        elif name == "embed":
            wide[name] = weight.repeat(1, 2)
        else:
            wide[name] = weight.repeat(1, 2) / 2
    return Decoder(replace(SHAPE, hidden_size=2 * SHAPE.hidden_size), wide)


def texts(num: int) -> list[Reply]:
    tokens = torch.randint(VOCAB, (num, LENGTH), generator=torch.Generator().manual_seed(1))
    return [Reply(f"r{i}/0", "a", tuple(row), FIRST) for i, row in enumerate(tokens.tolist())]


@pytest.mark.parametrize("cell", ["lstm", "mlp"])
def test_of_a_sibling_with_the_same_states_nothing_is_lost(cell, tmp_path) -> None:
    weights = random_tensors(0, SHAPE, sharpness=3.0)
    small, wide = Decoder(SHAPE, weights), doubled(weights)
    torch.manual_seed(0)
    kind = Kind("mlp_speculator", DEPTH, cell, inner_dim=24)
    old, new, fresh = (new_learner(kind, model, IDS, {}) for model in (small, wide, wide))
    read, told = texts(60), texts(4)
    readers = [
        StateReader(
            model, (), all_rows=False, max_len=64, folder=tmp_path / str(i), max_nbytes=1 << 20
        )
        for i, model in enumerate((wide, small))
    ]
    fit(new, old, IDS, read, readers)
    pieces = [piece for text in told if (piece := whole_piece(text, DEPTH)) is not None]

    def logits(learner, reader) -> Tensor:
        head = torch.from_numpy(learner.source.head_weights(IDS))
        with torch.no_grad():
            return torch.stack([x @ head.T for x in learner.outputs(pack(pieces, DEPTH, reader))])

    wanted = logits(old, readers[1])
    spread = wanted.std()
    assert (logits(new, readers[0]) - wanted).abs().max() < 0.05 * spread
    assert (logits(fresh, readers[0]) - wanted).abs().max() > spread


@pytest.mark.parametrize("what", [{"name": "medusa"}, {"own_embedding": True, "cell": "mlp"}])
def test_what_cannot_be_moved_is_refused(what, monkeypatch) -> None:
    monkeypatch.setattr(sibling, "fingerprint", lambda tokenizer: tokenizer)
    kind = Kind(**{"name": "mlp_speculator", "depth": 2, "inner_dim": 8} | what)
    old = new_learner(kind, Decoder(SHAPE, random_tensors(0, SHAPE)), IDS, {})
    llms = (SimpleNamespace(tokenizer="one"), SimpleNamespace(tokenizer="other"))
    for vocabulary, error in (("one", "have the tokenizer"), ("other", "is for mlp_speculator")):
        with pytest.raises(ConfigError, match=f"--from-model .*{error}"):
            sibling.moved(old, kind, IDS, llms, SimpleNamespace(vocabulary=vocabulary), 0.0)


def test_least_squares_are_those_of_numpy() -> None:
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(90, 7, generator=source), torch.randn(90, 5, generator=source)
    wanted, *_ = np.linalg.lstsq(x.numpy(), y.numpy(), rcond=None)
    torch.testing.assert_close(least_squares(x, y), torch.from_numpy(wanted), atol=2e-3, rtol=0)


def test_the_texts_are_those_that_a_run_begins_with() -> None:
    many = texts(2 * batches.POOL)
    first = batches.first_pool(many)
    pieces = next(batches.epoch(many, DEPTH, None, 10_000_000, (0, 1, 0)))
    assert {text.key for text in first} != {text.key for text in many[: batches.POOL]}
    assert {piece.reply.key for piece in pieces[: batches.POOL]} == {text.key for text in first}
