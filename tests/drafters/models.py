"""A tiny target and a draft model for it, which is often, not always, right."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from collections.abc import Sequence

from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.params import SamplingParams
from forerun.core.types import Seq
from forerun.drafters import draft_model
from forerun.drafters.base.contract import Target
from forerun.drafters.draft_model import Options
from forerun.drafters.draft_model.network import DraftModel
from forerun.lab.torch.decoder import Decoder
from forerun.model.model import Model
from tests.drafters.helpers import GREEDY, NO_OUTCOME
from tests.tiny import tiny_model

VOCAB_SIZE = 12
WARM = SamplingParams(temperature=0.9, top_p=0.95)


def tiny(
    seed: int = 1, noise: float = 0.0, vocab_size: int = VOCAB_SIZE, max_position: int = 64
) -> Decoder:
    """A random model that has opinions; with noise, a relative of the one of that seed."""
    return tiny_model(
        seed, sharpness=2.0, noise=noise, vocab_size=vocab_size, max_position=max_position
    )


TARGET_MODEL, DRAFT_MODEL = tiny(), tiny(noise=0.5)
TARGET = Target(TARGET_MODEL, None, max_num_seqs=4, max_len=64)


def drafter_of(
    model: Model = DRAFT_MODEL, target: Target = TARGET, **options: object
) -> DraftModel:
    exact = {"kv": "auto", "draft_vocab": "auto", **options}
    return draft_model.drafter_of(model, Options(model="tiny", **exact), target)  # type: ignore[arg-type]


def seq_of(tokens: Sequence[int], seq_id: int = 0, params: SamplingParams = GREEDY) -> Seq:
    return Seq(seq_id, list(tokens), params, seed=100 + seq_id)


def begun(drafter: DraftModel, *seqs: Seq) -> list[Seq]:
    for seq in seqs:
        drafter.begin(seq, NO_OUTCOME)
    return list(seqs)


def logits_of(model: Decoder, tokens: Sequence[int]) -> Floats:
    """Logits (V,) after the tokens, computed from nothing."""
    cache = model.new_cache(1, len(tokens))
    last = model.forward(Batch((Segment(0, 0, tuple(tokens)),)), cache).last
    return model.head(last[-1:])[0]
