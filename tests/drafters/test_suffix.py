from __future__ import annotations

import random
import sys

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.types import Draft, Outcome, Seq
from forerun.drafters.suffix import MAX_OCCURRENCES, Options, Suffix
from tests.drafters.helpers import sequence

pytest.importorskip("forerun._native")

WORDS = st.lists(st.integers(0, 2), min_size=1, max_size=25)
PAST = st.lists(WORDS, max_size=3)


def begun(drafter: Suffix, tokens: list[int], seq_id: int = 0, num_prompt: int = 0) -> Seq:
    """Begin a sequence whose first token after the prompt (default: its last) was just emitted."""
    seq = sequence(tokens, seq_id, num_prompt or max(1, len(tokens) - 1))
    drafter.begin(seq, Outcome((), tuple(seq.generated[:1])))
    return seq


def finished(drafter: Suffix, prompt: list[int], output: list[int], seq_id: int) -> None:
    seq = begun(drafter, [*prompt, output[0]], seq_id, len(prompt))
    seq.tokens.extend(output[1:])
    drafter.end(seq)


def proposed(drafter: Suffix, seq: Seq, budget: int = 64) -> Draft:
    (draft,) = drafter.propose([seq], [budget])
    return draft


def occurrences(texts: list[list[int]], pattern: list[int]) -> int:
    """How often a pattern is seen in the texts."""
    n = len(pattern)
    return sum(text[i : i + n] == pattern for text in texts for i in range(len(text) - n + 1))


def followed(texts: list[list[int]], pattern: list[int]) -> int:
    """How often something follows a pattern in the texts."""
    return occurrences([text[:-1] for text in texts], pattern)


def best_tree_score(texts: list[list[int]], pattern: list[int], size: int, least: float) -> float:
    """The oracle: grow the tree by products of count ratios, the best open node first."""
    score, here, probability, seen = 0.0, pattern, 1.0, followed(texts, pattern)
    open_nodes: list[tuple[float, list[int]]] = []
    for _ in range(size):
        children = [[*here, token] for token in range(3)]
        ratios = [occurrences(texts, child) / seen for child in children]
        open_nodes += [(probability * r, c) for r, c in zip(ratios, children, strict=True)]
        open_nodes = sorted(node for node in open_nodes if node[0] > least - 1e-9)
        if not open_nodes:
            break
        probability, here = open_nodes.pop()
        seen = occurrences(texts, here)
        score += probability
    return score


def tree_score(draft: Draft, texts: list[list[int]], pattern: list[int]) -> float:
    """Sum of the drafted nodes' shares of a pattern's occurrences."""
    paths = [tree.path_to(node, draft.parents) for node in range(len(draft))]
    counts = [occurrences(texts, pattern + [draft.tokens[i] for i in path]) for path in paths]
    return sum(counts) / followed(texts, pattern)


@given(WORDS, PAST, st.floats(0.5, 2.0), st.sampled_from([0.0, 1.0]), st.sampled_from([0.05, 0.3]))
@example([1, 0, 1, 2, 1, 1], [[1, 2, 1, 0, 1, 2, 0, 1, 1]], 1.0, 1.0, 0.3)
def test_the_draft_has_the_best_score_of_all_match_lengths(
    tokens: list[int], past: list[list[int]], factor: float, offset: float, least: float
) -> None:
    drafter = Suffix(Options(factor=factor, offset=offset, min_token_prob=least, num_draft=6))
    for i, output in enumerate(past, 1):
        finished(drafter, [0], output, i)
    seq = begun(drafter, tokens)
    draft = proposed(drafter, seq)

    scores = {0.0}
    reached = {0.0}
    for texts in ([tokens], [*past, seq.generated]):
        for length in range(1, len(tokens) + 1):
            pattern, size = tokens[-length:], min(6, int(factor * length + offset))
            assume(followed(texts, pattern) <= MAX_OCCURRENCES)  # of more, only some vote
            if size and followed(texts, pattern):
                scores.add(best_tree_score(texts, pattern, size, least))
                if len(draft) <= size:
                    reached.add(tree_score(draft, texts, pattern))
    # Where another text has other shares it may reach more, with nodes that are too rare there.
    assert any(score == pytest.approx(max(scores)) for score in reached)


def test_the_likeliest_branch_comes_first_and_rare_ones_are_left_out() -> None:
    tokens = [1, 5, 6, 2, 1, 5, 7, 3, 1, 5, 6, 4, 1, 8, 9, 1]
    drafter = Suffix(Options(factor=7.0, min_token_prob=0.3))
    seq = begun(drafter, tokens)
    assert proposed(drafter, seq) == Draft.chain([5, 6])  # 3 of 4, then 2 of 4; 8 is 1 of 4
    # Four occurrences of one token, then three of two: each is evidence of four.
    assert proposed(drafter, seq).confidence == pytest.approx((3 / 4 * 4 / 5, 2 / 3 * 4 / 5))
    assert proposed(drafter, seq, budget=1) == Draft.chain([5])
    wide = Suffix(Options(factor=7.0, min_token_prob=0.25))
    draft = proposed(wide, begun(wide, tokens))
    assert [draft.tokens[i] for i in tree.children(draft.parents)[-1]] == [5, 8]
    assert [draft.tokens[i] for i in tree.children(draft.parents)[0]] == [6, 7]


def test_outputs_are_shared_but_prompts_are_not() -> None:
    drafter = Suffix(Options(factor=2.0))
    finished(drafter, prompt=[11, 12, 13], output=[21, 22, 23], seq_id=1)
    assert proposed(drafter, begun(drafter, [9, 21, 22], 2)).tokens == (23,)
    assert proposed(drafter, begun(drafter, [9, 11, 12], 3)).tokens == ()


def test_running_requests_learn_from_each_other() -> None:
    drafter = Suffix(Options(factor=2.0))
    first, second = begun(drafter, [1, 21], 1), begun(drafter, [2, 31], 2)
    first.tokens += [22, 23]
    second.tokens += [21, 22]
    drafts = drafter.propose([first, second], [8] * 2)
    assert [d.tokens for d in drafts] == [(), (23,)]


def test_no_sharing_when_asked_for_none() -> None:
    drafter = Suffix(Options(factor=2.0, shared_tokens=0))
    finished(drafter, [1], [21, 22, 23], 1)
    assert proposed(drafter, begun(drafter, [9, 21, 22], 2)).tokens == ()
    assert drafter.texts.shared.num_tokens == 0


@given(WORDS, WORDS, WORDS)
def test_a_sequence_that_comes_back_is_read_once(
    prompt: list[int], head: list[int], tail: list[int]
) -> None:
    drafter = Suffix(Options())
    seq = begun(drafter, [*prompt, head[0]], num_prompt=len(prompt))
    proposed(drafter, seq)
    seq.tokens.extend(head[1:])
    drafter.end(seq)
    seq.tokens.append(tail[0])
    drafter.begin(seq, Outcome((), (tail[0],)))
    proposed(drafter, seq)
    seq.tokens.extend(tail[1:])
    drafter.end(seq)
    assert drafter.texts.shared.num_tokens == len(head) + len(tail)
    assert not drafter.texts._histories


def test_a_full_index_takes_no_more_than_is_counted() -> None:
    drafter, rng = Suffix(Options(shared_tokens=2000)), random.Random(1)
    for number in range(60):
        finished(drafter, [0], [rng.randrange(50) for _ in range(100)], number)
    shared = sys.getsizeof(drafter.texts.shared)
    counted = drafter.memory(0, 100).total
    assert 0.5 * counted < shared <= counted
    seq = begun(drafter, [rng.randrange(50) for _ in range(100)], num_prompt=1)
    own = sys.getsizeof(drafter.texts.indexes([seq])[0])
    assert own <= drafter.memory(1, 100).total - counted
