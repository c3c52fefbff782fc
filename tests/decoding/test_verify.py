from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.params import SamplingParams
from forerun.core.random import Noise
from forerun.core.types import EMPTY_DRAFT, Draft, Outcome, Seq
from forerun.decoding import verify as verify_module
from forerun.decoding.processors import LogitsPipeline

GREEDY = SamplingParams(temperature=0)
V = 6


def seq(params: SamplingParams = GREEDY, seed: int = 0) -> Seq:
    return Seq(0, [1, 2], params, seed)


def verify(
    seq: Seq,
    draft: Draft,
    logits: Floats,
    *,
    eos_ids: frozenset[int] = frozenset(),
    hidden: Floats | None = None,
) -> Outcome:
    pipeline = LogitsPipeline(
        seq.params, seq.tokens[: seq.num_prompt], noise=seq.noise, eos_ids=eos_ids
    )
    return verify_module.verify(seq, draft, logits, pipeline, hidden=hidden)


def saying(*tokens: int) -> Floats:
    """Logits (len(tokens), V) whose rows are sure of the given tokens."""
    return np.eye(V, dtype=np.float32)[list(tokens)] * 100


def test_an_empty_draft_is_plain_decoding() -> None:
    outcome = verify(seq(), EMPTY_DRAFT, saying(4))
    assert (outcome.path, outcome.emitted) == ((), (4,))


def test_a_chain_is_kept_as_far_as_it_is_right_and_the_target_adds_its_own_token() -> None:
    chain = Draft.chain([3, 4, 5])
    assert verify(seq(), chain, saying(3, 4, 5, 0)).emitted == (3, 4, 5, 0)
    outcome = verify(seq(), chain, saying(3, 1, 5, 0))
    assert (outcome.path, outcome.emitted) == ((0,), (3, 1))
    assert verify(seq(), chain, saying(2, 4, 5, 0)).emitted == (2,)


def test_the_walk_takes_the_right_branch_of_a_tree() -> None:
    tokens, parents = tree.from_paths([[3, 4], [3, 5], [2, 5, 1]])
    logits = saying(2, 0, 0, 0, 5, 1, 4)  # root, 3, 34, 35, 2, 25, 251
    outcome = verify(seq(), Draft(tokens, parents), logits)
    assert outcome.path == (3, 4, 5)
    assert outcome.emitted == (2, 5, 1, 4)


def test_nodes_off_the_path_are_never_looked_at() -> None:
    params = SamplingParams(temperature=0.5, top_p=0.9, seed=1)
    tokens, parents = tree.from_paths([[3, 4], [2, 5]])
    logits = saying(2, 0, 0, 5, 1)
    logits[1:3] = math.nan
    assert verify(seq(params), Draft(tokens, parents), logits).emitted == (2, 5, 1)


def test_logits_and_features_are_handed_on() -> None:
    logits, hidden = saying(3, 4), np.ones((2, 7), np.float32)
    outcome = verify(seq(), Draft.chain([3]), logits, hidden=hidden)
    assert outcome.logits is logits
    assert outcome.hidden is hidden


def test_a_row_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="1 rows of logits for a draft of 1 nodes"):
        verify(seq(), Draft.chain([3]), saying(3))


def test_penalties_see_the_drafted_prefix() -> None:
    params = SamplingParams(temperature=0, frequency_penalty=1)
    logits = np.zeros((4, V), np.float32)
    logits[:, 3], logits[:, 4] = 2.5, 1
    outcome = verify(seq(params), Draft.chain([3, 3, 3]), logits)
    assert outcome.emitted == (3, 3, 4)


def test_end_tokens_are_banned_until_the_drafted_prefix_is_long_enough() -> None:
    params = SamplingParams(temperature=0, min_tokens=2)
    logits = saying(5, 5, 5) + saying(4, 4, 4) / 2
    outcome = verify(seq(params), Draft.chain([4, 4]), logits, eos_ids=frozenset({5}))
    assert outcome.emitted == (4, 4, 5)


def test_the_sequence_is_not_changed() -> None:
    s = seq()
    verify(s, Draft.chain([3]), saying(3, 4))
    assert s.tokens == [1, 2]


trees = st.lists(st.integers(-1, 5), max_size=7).map(
    lambda raw: tuple(min(parent, i - 1) for i, parent in enumerate(raw))
)


@given(trees, st.data())
def test_chosen_guesses_give_the_tokens_of_plain_decoding(
    parents: tuple[int, ...], data: st.DataObject
) -> None:
    """The rule is plain decoding on the logits of the tree, with the same noise."""
    tokens = tuple(data.draw(st.integers(0, V - 1)) for _ in parents)
    seed = data.draw(st.integers(0, 2**40))
    params = SamplingParams(temperature=data.draw(st.sampled_from([0, 1])), top_k=4)
    logits = np.random.default_rng(seed).standard_normal((1 + len(parents), V), np.float32)
    outcome = verify(seq(params, seed), Draft(tokens, parents), logits)
    node, emitted, pipeline = -1, [], LogitsPipeline(params, [1, 2], noise=Noise(seed))
    while True:
        emitted.append(pipeline.choose(logits[1 + node], emitted))
        matching = [i for i, p in enumerate(parents) if p == node and tokens[i] == emitted[-1]]
        if not matching:
            break
        node = matching[0]
    assert outcome.emitted == tuple(emitted)


def test_a_chosen_token_beyond_the_vocabulary_is_rejected() -> None:
    draft = Draft((V + 1, 3), (-1, -1))
    assert verify(seq(SamplingParams(top_k=1)), draft, saying(3, 0, 4)).emitted == (3, 4)
    assert verify(seq(), Draft.chain([V + 1]), saying(3, 0)).emitted == (3,)
