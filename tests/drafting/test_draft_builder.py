"""Chains and trees that a model guesses: their shape, their tokens and the distributions they carry."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from forerun.core import tree
from forerun.core.batch import Batch
from forerun.core.params import SamplingParams
from forerun.decoding.processors import LogitsPipeline
from forerun.model.cache.base import KVCache
from forerun.model.model import Hidden
from tests.drafters.helpers import GREEDY, check_draft
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
)


@given(
    st.lists(st.integers(1, 3), max_size=3),
    st.integers(1, 4),
    st.integers(0, 9),
    st.sampled_from([GREEDY, WARM]),
    st.floats(0, 0.5),
)
@settings(max_examples=40)
def test_drafts_are_trees_within_budget_and_options(
    branch: list[int], num_draft: int, budget: int, params: SamplingParams, confidence: float
) -> None:
    drafter = drafter_of(branch=tuple(branch), num_draft=num_draft, min_confidence=confidence)
    (seq,) = begun(drafter, seq_of([1, 2], params=params))
    (draft,) = drafter.propose([seq], [budget])
    check_draft(draft, budget)
    widths = branch or [1] * num_draft
    for node, children in tree.children(draft.parents).items():
        depth = 0 if node < 0 else tree.depths(draft.parents)[node] + 1
        assert len(children) <= widths[depth]
    if params.is_greedy:
        assert draft.probs is None


def test_a_tree_has_the_likeliest_tokens() -> None:
    drafter = drafter_of(branch=(3, 2))
    (seq,) = begun(drafter, seq_of([1, 2]))
    (draft,) = drafter.propose([seq], [20])
    assert tree.children(draft.parents) == {-1: [0, 1, 2], 0: [3, 4], 1: [5, 6], 2: [7, 8]}
    best = logits_of(DRAFT_MODEL, seq.tokens).topk(3).indices.tolist()
    assert list(draft.tokens[:3]) == best
    below = logits_of(DRAFT_MODEL, [*seq.tokens, best[1]]).topk(2).indices.tolist()
    assert list(draft.tokens[5:7]) == below


def test_every_drawn_node_carries_its_true_distribution() -> None:
    params = replace(WARM, repetition_penalty=1.3)
    drafter = drafter_of(branch=(3, 2))
    (seq,) = begun(drafter, seq_of([1, 2, 3], params=params))
    (draft,) = drafter.propose([seq], [20])
    assert draft.probs is not None
    for parent, children in tree.children(draft.parents).items():
        said = [draft.tokens[i] for i in tree.path_to(parent, draft.parents)]
        row = logits_of(DRAFT_MODEL, seq.tokens + said)
        expected = LogitsPipeline(params, seq.tokens).probs(row, said)
        for child in children:
            probs = draft.probs[child]
            assert probs is not None
            torch.testing.assert_close(probs, expected)
            expected = expected.clone()
            expected[draft.tokens[child]] = 0
            expected /= expected.sum()


class MarkovModel:
    """Logits that depend on the last token alone: thousands of drafts cost little."""

    config = TARGET_MODEL.config

    def __init__(self, seed: int) -> None:
        self.logits = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.manual_seed(seed))

    def forward(self, batch: Batch, cache: KVCache, taps: tuple[int, ...] = ()) -> Hidden:
        return Hidden(torch.from_numpy(batch.tokens())[:, None])

    def head(self, hidden: Tensor) -> Tensor:
        return self.logits[hidden[:, 0]]

    def new_cache(self, num_slots: int, max_len: int, num_blocks: int | None = None) -> KVCache:
        return TARGET_MODEL.new_cache(num_slots, max_len, num_blocks=num_blocks)

    def nbytes(self) -> int:
        return self.logits.nbytes


def test_tokens_are_drawn_from_the_rows_they_carry() -> None:
    """A node and its second sibling, a node and its child; each a false alarm once in 10^6."""
    model, num_runs = MarkovModel(seed=0), 2000
    drafter = drafter_of(model, replace(TARGET, max_num_seqs=num_runs, max_len=8), branch=(2, 1))
    seqs = begun(drafter, *(seq_of([3, 4], i, WARM) for i in range(num_runs)))
    drafts = drafter.propose(seqs, [8] * len(seqs))
    laws = [LogitsPipeline(WARM, [0]).probs(row, []).double() for row in model.logits]
    first = laws[4]
    siblings = {
        (a, b): float(first[a] * first[b] / (1 - first[a]))
        for a, b in itertools.permutations(range(VOCAB_SIZE), 2)
    }
    chains = {
        (a, b): float(first[a] * laws[a][b])
        for a, b in itertools.product(range(VOCAB_SIZE), repeat=2)
    }
    assert _chi_square(Counter(d.tokens[:2] for d in drafts), siblings, num_runs) > 1e-6
    assert _chi_square(Counter(d.tokens[::2] for d in drafts), chains, num_runs) > 1e-6
    assert _chi_square(Counter(d.tokens[1:3] for d in drafts), siblings, num_runs) < 1e-6


def _chi_square(
    counts: Counter[tuple[int, ...]], expected: dict[tuple[int, int], float], num_runs: int
) -> float:
    """The p-value; outcomes expected fewer than 10 times are taken together."""
    if any(expected.get(outcome, 0) == 0 for outcome in counts):
        return 0.0
    common = [o for o, probability in expected.items() if probability * num_runs >= 10]
    observed = [counts[o] for o in common]
    wanted = [expected[o] * num_runs for o in common]
    observed.append(num_runs - sum(observed))
    wanted.append(num_runs - sum(wanted))
    return float(stats.chisquare(observed, wanted, sum_check=False).pvalue)


def test_temperature_zero_drafts_point_masses_for_every_request() -> None:
    drafter = drafter_of(temperature=0.0, num_draft=2)
    (seq,) = begun(drafter, seq_of([1, 2, 3], params=WARM))
    (draft,) = drafter.propose([seq], [8])
    assert draft.probs is None
    assert draft.tokens[0] == int(logits_of(DRAFT_MODEL, seq.tokens).argmax())


def test_greedy_drafts_follow_bias_and_penalties() -> None:
    biased = replace(GREEDY, logit_bias={7: 100.0})
    drafter = drafter_of(num_draft=3)
    (seq,) = begun(drafter, seq_of([1, 2], params=biased))
    assert drafter.propose([seq], [8])[0].tokens == (7, 7, 7)
    drafter.end(seq)
    (seq,) = begun(drafter, seq_of([1, 2], params=replace(GREEDY, presence_penalty=2.0)))
    (draft,) = drafter.propose([seq], [8])
    expected = logits_of(DRAFT_MODEL, [1, 2, draft.tokens[0]]).clone()
    expected[draft.tokens[0]] -= 2.0
    assert draft.tokens[1] == int(expected.argmax())


def test_nothing_is_guessed_below_a_token_without_confidence() -> None:
    drafter = drafter_of(num_draft=6, min_confidence=0.5)
    lengths = set()
    for i in range(40):
        (seq,) = begun(drafter, seq_of([i % VOCAB_SIZE, i // VOCAB_SIZE]))
        (draft,) = drafter.propose([seq], [8])
        drafter.end(seq)
        contexts = [[*seq.tokens, *draft.tokens[:j]] for j in range(len(draft))]
        confident = [bool(logits_of(DRAFT_MODEL, c).softmax(0).max() >= 0.5) for c in contexts]
        assert all(confident[:-1])
        assert len(draft) == 6 or not confident[-1]
        lengths.add(len(draft))
    assert len(lengths) > 1
