from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.params import SamplingParams
from forerun.core.random import Stream, uniform
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
    logits: torch.Tensor,
    *,
    eos_ids: frozenset[int] = frozenset(),
    hidden: torch.Tensor | None = None,
) -> Outcome:
    pipeline = LogitsPipeline(
        seq.params, seq.tokens[: seq.num_prompt], seed=seq.seed, eos_ids=eos_ids
    )
    return verify_module.verify(seq, draft, logits, pipeline, hidden=hidden)


def saying(*tokens: int) -> torch.Tensor:
    """Logits (len(tokens), V) whose rows are sure of the given tokens."""
    return torch.eye(V)[list(tokens)] * 100


def one_hot(token: int, width: int = V) -> torch.Tensor:
    return torch.eye(width)[token]


def fix_uniform(monkeypatch: pytest.MonkeyPatch, **values: float) -> None:
    monkeypatch.setattr(
        verify_module, "uniform", lambda seed, stream, position, index=0: values[stream.name]
    )


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
    draft = Draft(tokens, parents, tuple(one_hot(t) for t in tokens))
    assert verify(seq(params), draft, logits).emitted == (2, 5, 1)


def test_logits_and_features_are_handed_on() -> None:
    logits, hidden = saying(3, 4), torch.randn(2, 7)
    outcome = verify(seq(), Draft.chain([3]), logits, hidden=hidden)
    assert outcome.logits is logits
    assert outcome.hidden is hidden


def test_a_row_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="1 rows of logits for a draft of 1 nodes"):
        verify(seq(), Draft.chain([3]), saying(3))


def test_penalties_see_the_drafted_prefix() -> None:
    params = SamplingParams(temperature=0, frequency_penalty=1)
    logits = torch.zeros(4, V)
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


def test_greedy_ignores_what_guesses_were_drawn_from() -> None:
    draft = Draft((3, 4), (-1, -1), (one_hot(4), one_hot(4)))
    assert verify(seq(), draft, saying(4, 0, 1)).emitted == (4, 1)


trees = st.lists(st.integers(-1, 5), max_size=7).map(
    lambda raw: tuple(min(parent, i - 1) for i, parent in enumerate(raw))
)


@given(trees, st.data())
def test_chosen_guesses_give_the_tokens_of_plain_decoding(
    parents: tuple[int, ...], data: st.DataObject
) -> None:
    """Rule one is plain decoding on the logits of the tree, with the same random numbers."""
    tokens = tuple(data.draw(st.integers(0, V - 1)) for _ in parents)
    seed = data.draw(st.integers(0, 2**40))
    params = SamplingParams(temperature=data.draw(st.sampled_from([0, 1])), top_k=4)
    logits = torch.randn(1 + len(parents), V, generator=torch.Generator().manual_seed(seed))
    outcome = verify(seq(params, seed), Draft(tokens, parents), logits)
    node, emitted, pipeline = -1, [], LogitsPipeline(params, [1, 2], seed=seed)
    while True:
        emitted.append(pipeline.choose(logits[1 + node], emitted))
        matching = [i for i, p in enumerate(parents) if p == node and tokens[i] == emitted[-1]]
        if not matching:
            break
        node = matching[0]
    assert outcome.emitted == tuple(emitted)


@given(st.data())
def test_drawn_guesses_follow_the_rule_step_by_step(data: st.DataObject) -> None:
    """One set of siblings against the rule as the papers write it, with the same numbers."""
    weights = st.lists(st.sampled_from([0, 0, 1, 2, 5]), min_size=V, max_size=V).filter(any)
    rows = [torch.tensor(data.draw(weights)).double() for _ in range(3)]
    tokens = [data.draw(st.sampled_from(row.nonzero().flatten().tolist())) for row in rows]
    target = torch.tensor(data.draw(weights)).double()
    seed = data.draw(st.integers(0, 2**40))
    draft = Draft(tuple(tokens), (-1,) * 3, tuple((row / row.sum()).float() for row in rows))
    logits = torch.vstack([target.log()[None].float(), torch.zeros(3, V)])
    outcome = verify(seq(SamplingParams(), seed), draft, logits)

    target = target / target.sum()
    for i, (token, row) in enumerate(zip(tokens, rows, strict=True)):
        row = row / row.sum()
        ratio = float(target[token] / row[token])
        u = uniform(seed, Stream.ACCEPT, 2, i)
        if abs(u - ratio) < 1e-5:
            return  # too close to call in fp32
        if u < ratio:
            assert outcome.path == (i,)
            assert outcome.emitted[0] == token
            return
        rest = (target - row).clamp(min=0)
        target = rest / rest.sum() if rest.sum() > 1e-6 else target
    assert outcome.path == ()
    assert target[outcome.emitted[0]] > 1e-6


def test_a_token_the_target_excludes_is_rejected_even_by_the_smallest_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fix_uniform(monkeypatch, ACCEPT=0.0, TARGET=0.0)
    params = SamplingParams(top_k=1)
    draft = Draft((3,), (-1,), (one_hot(3),))
    assert verify(seq(params), draft, saying(2, 0)).emitted == (2,)


def test_a_token_its_own_row_excludes_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_uniform(monkeypatch, ACCEPT=0.0, TARGET=0.5)
    draft = Draft((3,), (-1,), (one_hot(4),))
    assert verify(seq(SamplingParams()), draft, saying(3, 0)).path == ()


def test_a_target_equal_to_the_draft_is_left_as_it_is_after_a_rejection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fix_uniform(monkeypatch, ACCEPT=1.0, TARGET=0.5)  # a number that rounding alone could produce
    draft = Draft((3,), (-1,), (one_hot(3),))
    assert verify(seq(SamplingParams(top_k=1)), draft, saying(3, 0)).emitted == (3,)


@pytest.mark.parametrize("width", [V - 2, V + 3])
def test_drafts_of_another_width_are_padded_or_cut(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    fix_uniform(monkeypatch, ACCEPT=0.5, TARGET=0.5)
    last = width - 1
    draft = Draft((last,), (-1,), (one_hot(last, width),))
    outcome = verify(seq(SamplingParams()), draft, saying(min(last, 2), 1))
    assert outcome.emitted == (2,)
    if last < V:
        outcome = verify(seq(SamplingParams()), draft, saying(last, 1))
        assert outcome.emitted == (last, 1)


def test_a_chosen_token_beyond_the_vocabulary_is_rejected() -> None:
    draft = Draft((V + 1, 3), (-1, -1), (None, one_hot(3)))
    assert verify(seq(SamplingParams(top_k=1)), draft, saying(3, 0, 4)).emitted == (3, 4)
    assert verify(seq(), Draft.chain([V + 1]), saying(3, 0)).emitted == (3,)


def test_a_row_of_the_draft_need_not_sum_to_one_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The acceptance is decided on normalised rows: 0.999 would be rejected by the raw ones."""
    fix_uniform(monkeypatch, ACCEPT=0.999, TARGET=0.5)
    half = torch.tensor([0.51, 0.51, 0, 0, 0, 0])
    logits = torch.tensor([[0.0, 0, *[-math.inf] * 4], [0.0] * V])
    assert verify(seq(SamplingParams()), Draft((1,), (-1,), (half,)), logits).path == (0,)


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_on_an_accelerator_give_the_same_tokens(temperature: float) -> None:
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(3))
    params = SamplingParams(temperature=temperature, top_p=0.9)
    tokens, parents = (3, 4, 5, 0), (-1, -1, 0, 1)
    rows = torch.full((4, V), 1 / V)
    for seed in range(50):
        here = verify(seq(params, seed), Draft(tokens, parents, tuple(rows)), logits)
        there = verify(seq(params, seed), Draft(tokens, parents, tuple(rows.cuda())), logits.cuda())
        assert (here.path, here.emitted) == (there.path, there.emitted)
