from __future__ import annotations

import pytest

pytest.importorskip("torch")

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from forerun import LLM
from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.batch import Batch
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import Draft, Outcome, Seq, TopK
from forerun.decoding.grammar import limit
from forerun.decoding.processors import LogitsPipeline
from forerun.decoding.verify import verify
from forerun.drafters.base.contract import SELF, LoadedModel, Target
from forerun.drafters.draft_model import Options, build
from forerun.drafters.draft_model.network import DraftModel
from forerun.lab.torch.decoder import Decoder
from forerun.model.cache.base import KVCache
from forerun.model.loader import load_model
from forerun.model.model import Hidden
from forerun.weights.checkpoint import open_checkpoint
from tests.drafters.helpers import GREEDY
from tests.drafters.models import (
    DRAFT_MODEL,
    TARGET,
    TARGET_MODEL,
    VOCAB_SIZE,
    WARM,
    begun,
    drafter_of,
    logits_of,
    seq_of,
    tiny,
)
from tests.engine.harness import complete, engine_for, plain
from tests.model.tiny import hf_model
from tests.tiny import tiny_model
from tests.weights.files import write_gguf


class CountingModel:
    """Passes everything on and notes the rows of each pass."""

    def __init__(self, model: Decoder) -> None:
        self.model = model
        self.config = model.config
        self.num_rows: list[int] = []

    def forward(self, batch: Batch, cache: KVCache, aux_layers: tuple[int, ...] = ()) -> Hidden:
        self.num_rows.append(batch.num_rows)
        return self.model.forward(batch, cache, aux_layers)

    def head(self, hidden: Floats) -> Floats:
        return self.model.head(hidden)

    def topk(self, hidden: Floats, k: int, **wanted: object) -> TopK:
        return self.model.topk(hidden, k, **wanted)

    def new_cache(self, num_slots: int, max_len: int, **wanted: int) -> KVCache:
        return self.model.new_cache(num_slots, max_len, **wanted)

    def nbytes(self) -> int:
        return self.model.nbytes()


SURE = tiny_model(1, sharpness=9.0, vocab_size=VOCAB_SIZE, max_position=64)
"""Its drafts are chains."""


def judge(seq: Seq, draft: Draft, model: Decoder = TARGET_MODEL) -> Outcome:
    """What the target says to a draft, node by node, and the sequence goes on."""
    paths = [tree.path_to(i, draft.parents) for i in range(len(draft))]
    contexts = [seq.tokens, *(seq.tokens + [draft.tokens[i] for i in p] for p in paths)]
    logits = np.stack([logits_of(model, c) for c in contexts])
    outcome = verify(
        seq,
        draft,
        logits,
        LogitsPipeline(seq.params, seq.tokens[: seq.num_prompt], noise=seq.noise),
    )
    seq.tokens.extend(outcome.emitted)
    return outcome


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.3)])
def test_the_target_as_its_own_draft_is_always_right(params: SamplingParams) -> None:
    drafter = drafter_of(TARGET_MODEL, num_draft=4)
    (seq,) = begun(drafter, seq_of([1, 2, 3], params=params))
    for _ in range(6):
        (draft,) = drafter.propose([seq], [8])
        path = judge(seq, draft).path
        assert path
        assert path[-1] not in draft.parents, "what it guessed below its own choice was wrong"


@pytest.mark.parametrize("num_draft", [3, 9])
@pytest.mark.parametrize("params", [GREEDY, WARM, replace(WARM, presence_penalty=1.0)])
def test_what_the_cache_keeps_changes_no_draft(params: SamplingParams, num_draft: int) -> None:
    drafter = drafter_of(num_draft=num_draft)
    (seq,) = begun(drafter, seq_of([1, 2, 3], params=params))
    num_accepted: Counter[int] = Counter()
    for budget in itertools.islice(itertools.cycle([9, 9, 2, 0, 9]), 15):
        (draft,) = drafter.propose([seq], [budget])
        fresh = drafter_of(num_draft=num_draft)
        begun(fresh, seq)
        assert draft == fresh.propose([seq], [budget])[0]
        num_accepted[len(judge(seq, limit(draft, 2, None)).path)] += 1
    assert num_accepted[0], "no draft was rejected"
    assert num_accepted[1] + num_accepted[2], "no draft was accepted"


@pytest.mark.parametrize("params", [GREEDY, WARM])
def test_a_batch_drafts_what_each_sequence_drafts_alone(params: SamplingParams) -> None:
    prompts = [[1, 2, 3], [4] * 9, [5, 6]]
    together = drafter_of(num_draft=6)
    seqs = begun(together, *(seq_of(p, i, params) for i, p in enumerate(prompts)))
    for _ in range(3):
        drafts = together.propose(seqs, [8] * len(seqs))
        for seq, draft in zip(seqs, drafts, strict=True):
            alone = drafter_of(num_draft=6)
            begun(alone, seq)
            assert draft == alone.propose([seq], [8])[0]
            judge(seq, draft)


def test_no_row_is_computed_twice() -> None:
    counting = CountingModel(SURE)
    drafter = drafter_of(counting, num_draft=3)
    (seq,) = begun(drafter, seq_of([1, 2, 3, 4, 5]))
    assert judge(seq, drafter.propose([seq], [8])[0], SURE).path == (0, 1, 2)
    assert counting.num_rows == [5, 1, 1]
    counting.num_rows.clear()
    drafter.propose([seq], [8])
    assert counting.num_rows == [2, 1, 1]  # all was accepted: the last guess and the bonus token


def test_a_rejected_row_is_replaced() -> None:
    counting = CountingModel(SURE)
    drafter = drafter_of(counting, num_draft=3)
    (seq,) = begun(drafter, seq_of([1, 2, 3]))
    (draft,) = drafter.propose([seq], [8])
    wrong = (draft.tokens[1] + 1) % VOCAB_SIZE
    seq.tokens += [draft.tokens[0], wrong]
    counting.num_rows.clear()
    (after,) = drafter.propose([seq], [8])
    assert counting.num_rows == [1, 1, 1]
    assert after.tokens[0] == int(logits_of(SURE, seq.tokens).argmax())


def test_rows_that_no_step_computed_are_not_committed() -> None:
    """A tree whose other guesses are sure asks the model for no step; the queued tokens come again in the next one."""
    drafter, seq = drafter_of(), seq_of([1, 2, 3])
    begun(drafter, seq)
    drafter.new_draft([seq], [3])
    seq.tokens += [4, 5]
    (draft,) = drafter.propose([seq], [5])
    fresh, same = drafter_of(), seq_of(seq.tokens)
    begun(fresh, same)
    assert [draft] == fresh.propose([same], [5])
    assert len(draft)


def test_a_prompt_that_was_read_before_is_not_read_again() -> None:
    counting = CountingModel(TARGET_MODEL)
    drafter = drafter_of(counting, num_draft=1)
    (first,) = begun(drafter, seq_of([1, 2, 3, 4, 5]))
    (draft,) = drafter.propose([first], [8])
    first.tokens += draft.tokens
    drafter.propose([first], [8])
    drafter.end(first)
    counting.num_rows.clear()
    (second,) = begun(drafter, seq_of([1, 2, 3, 4, 5], 1))
    assert drafter.propose([second], [8]) == [draft]
    assert counting.num_rows == [1]


def test_a_long_prompt_is_read_in_parts() -> None:
    model = tiny(seed=2, max_position=700)
    target = Target(model, None, max_num_seqs=1, max_len=700)
    counting = CountingModel(model)
    drafter = drafter_of(counting, target, num_draft=1)
    (seq,) = begun(drafter, seq_of([i % VOCAB_SIZE for i in range(600)]))
    (draft,) = drafter.propose([seq], [8])
    assert counting.num_rows == [256, 256, 88]
    assert draft.tokens == (int(logits_of(model, seq.tokens).argmax()),)


def test_beyond_its_context_the_draft_is_silent() -> None:
    short = tiny(seed=2, max_position=16)
    drafter = drafter_of(short, num_draft=4)
    (seq,) = begun(drafter, seq_of([1] * 10))
    sizes = []
    for _ in range(12):
        (draft,) = drafter.propose([seq], [8])
        sizes.append(len(draft))
        seq.tokens.append(2)
    assert sizes == [4, 4, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0]


def test_a_token_the_draft_has_no_row_for_silences_it() -> None:
    drafter = drafter_of(tiny(seed=2, vocab_size=8))
    seqs = begun(drafter, seq_of([1, 9, 2], 0), seq_of([1, 7, 2], 1))
    silent, speaking = drafter.propose(seqs, [8] * len(seqs))
    assert len(silent) == 0
    assert len(speaking) == 5


def test_a_wider_padded_draft_guesses_only_the_targets_tokens() -> None:
    drafter = drafter_of(tiny(seed=3, vocab_size=40), num_draft=8, min_chance=0)
    seqs = begun(drafter, seq_of([1, 2], 0), seq_of([3], 1, WARM))
    for draft in drafter.propose(seqs, [8] * len(seqs)):
        assert len(draft) == 8
        assert max(draft.tokens) < VOCAB_SIZE


class OtherVocabulary:
    """Stands for something else than the small GGUF's vocabulary from id 65 on."""

    vocab_size = 100

    def token_bytes(self, token_id: int) -> bytes | None:
        return bytes([token_id + (token_id >= 65)])

    def is_special(self, token_id: int) -> bool:
        return False


def test_a_draft_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", tokenizer="gpt2")

    def load(model, **options):
        return LoadedModel(DRAFT_MODEL, open_checkpoint(Path(model)).tokenizer())

    target = replace(TARGET, vocabulary=OtherVocabulary(), load=load)
    with pytest.raises(ConfigError, match="token id 65 is 'B' to the target and 'A' to the draft"):
        build(Options(model=str(path)), target)


@pytest.fixture(scope="module")
def half_folder(tmp_path_factory) -> Path:
    """A random model in bfloat16, as a folder."""
    folder = tmp_path_factory.mktemp("half")
    model = hf_model("llama", hidden_size=64, intermediate_size=96, head_dim=16)
    model.bfloat16().save_pretrained(folder)
    return folder


def self_target(folder: Path) -> Target:
    def load(model, **options):
        assert model == SELF
        checkpoint = open_checkpoint(folder)
        return LoadedModel(load_model(checkpoint, **options), None)

    return Target(load(SELF).model, None, max_num_seqs=2, max_len=64, load=load)


@pytest.mark.parametrize("params", [GREEDY, replace(WARM, seed=5)])
@pytest.mark.parametrize("options", [{"quant": "int8"}, {"quant": "int4", "num_draft": 3}])
def test_the_target_rounded_drafts_for_itself_and_changes_no_token(
    half_folder: Path, options: dict[str, object], params: SamplingParams
) -> None:
    target = self_target(half_folder)
    wanted = replace(params, max_tokens=40, ignore_eos=True)
    drafter = build(Options(model="self", **options), target)  # type: ignore[arg-type]
    prompts = [[1, 2, 3], [40, 5]]
    runs = complete(engine_for(target.model, drafter, max_len=64), prompts, wanted)
    assert [run.seq.generated for run in runs] == plain(target.model, prompts, wanted)
    assert all(run.stats.tau > 1.5 for run in runs), "a rounded copy is often right"


def test_a_rounded_self_is_smaller(half_folder: Path) -> None:
    target = self_target(half_folder)
    sizes = [
        build(Options(model="self", quant=quant, head_bits=None), target).model.nbytes()
        for quant in ("none", "int8", "int4")
    ]
    assert target.model.nbytes() == sizes[0] > 1.5 * sizes[1] > sizes[1] > sizes[2]


@pytest.mark.parametrize(("quant", "head_bits"), [("int8", None), ("int8", 4), ("int4", 4)])
def test_a_draft_is_rounded_apart_from_its_target(
    tiny_gguf: Path, quant: str, head_bits: int | None
) -> None:
    sizes = {"max_model_len": 64, "controller": False}
    target = LLM(tiny_gguf, drafter="none", **sizes)
    prompts = [{"prompt_token_ids": ids} for ids in ([1, 2, 3], [40, 5], [7, 7])]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    wanted = [run.outputs[0].token_ids for run in target.generate(prompts, params)]
    asked = {"draft_model": "self", "draft_quant": quant, "draft_head_bits": head_bits}
    llm = LLM(tiny_gguf, memory_budget="4GiB", **asked, **sizes)
    assert [run.outputs[0].token_ids for run in llm.generate(prompts, params)] == wanted
    stats = llm.engine.stats
    assert stats.drafted > stats.accepted > 0 < stats.rejected
    (drafter,) = llm.engine.proposer.drafter.networks
    assert isinstance(drafter, DraftModel)
    assert llm.plan is not None
    assert llm.plan.components["drafter_weights"] == drafter.model.nbytes()
    assert llm.model.nbytes() == target.model.nbytes() > 1.2 * drafter.model.nbytes()
    assert (drafter.options.quant, drafter.options.head_bits) == (quant, head_bits or 4)


def test_self_needs_a_file() -> None:
    with pytest.raises(ConfigError, match="'self' cannot be loaded"):
        build(Options(model="self", quant="int4"), TARGET)
