"""Laws of the token tree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.batch import Batch, Segment
from forerun.core.types import Draft
from forerun.decoding.grammar import limit
from forerun.drafters.base.rules import broken_rule


@st.composite
def parent_arrays(draw: st.DrawFn, max_nodes: int = 24) -> tuple[int, ...]:
    """Any well-formed parent array."""
    n = draw(st.integers(0, max_nodes))
    return tuple(draw(st.integers(-1, i - 1)) for i in range(n))


@given(parent_arrays())
def test_ancestors_are_exactly_the_nodes_on_the_path(parents):
    mask = tree.ancestors(parents)
    for node in range(len(parents)):
        assert mask[node].nonzero()[0].tolist() == tree.path_to(node, parents)


@given(parent_arrays())
def test_depth_counts_the_ancestors(parents):
    assert tree.depths(parents) == [int(row.sum()) - 1 for row in tree.ancestors(parents)]


@given(parent_arrays())
def test_children_invert_parents(parents):
    pairs = {(p, c) for p, nodes in tree.children(parents).items() for c in nodes}
    assert pairs == {(p, i) for i, p in enumerate(parents)}


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=6))
def test_merged_paths_are_all_there_and_nothing_else(paths):
    tokens, parents = tree.from_paths(paths)
    Draft(tokens, parents)
    merged = {tuple(tokens[i] for i in tree.path_to(node, parents)) for node in range(len(tokens))}
    assert merged == {tuple(path[: i + 1]) for path in paths for i in range(len(path))}
    assert len(merged) == len(tokens), "no prefix is stored twice"


@pytest.mark.parametrize("parents", [(0,), (-2,), (-1, 1), (-1, 0, 5)])
def test_malformed_trees_are_refused(parents):
    draft = Draft(tuple(range(len(parents))), parents)
    assert "parent" in broken_rule([draft], [len(parents)], None)


@given(parent_arrays(), st.integers(0, 30), st.integers(0, 10))
def test_trimming_keeps_a_tree_and_whole_paths(parents, budget, depth):
    draft = Draft(tuple(range(100, 100 + len(parents))), parents)
    by_count, by_depth = draft.trim(budget), limit(draft, depth, None)
    assert len(by_count) == min(budget, len(draft))
    assert by_depth.tokens == tuple(
        t for t, d in zip(draft.tokens, tree.depths(parents), strict=True) if d < depth
    )
    for trimmed in (by_count, by_depth):
        for node in range(len(trimmed)):
            path = [trimmed.tokens[i] for i in tree.path_to(node, trimmed.parents)]
            whole = [draft.tokens[i] for i in tree.path_to(trimmed.tokens[node] - 100, parents)]
            assert path == whole


@given(
    st.lists(
        st.tuples(parent_arrays(), st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=4
    )
)
def test_a_split_batch_computes_the_same_rows(specs):
    segments = []
    for slot, (parents, num_pending, base) in enumerate(specs):
        tokens = (*range(num_pending), *range(len(parents)))
        below = (*tree.chain(num_pending), *[num_pending + parent for parent in parents])
        segments.append(Segment(slot, base, tokens, below, certain=num_pending))
    batch = Batch(tuple(segments))
    tiles = list(batch.split(8))
    assert all(tile.num_rows == 8 for tile in tiles[:-1])
    assert [t for tile in tiles for t in tile.tokens()] == batch.tokens().tolist()
    assert [p for tile in tiles for p in tile.positions()] == batch.positions().tolist()
    spans = [len(span) for span in batch.spans()]
    assert spans == [len(s.tokens) for s in segments]
    for tile in tiles:
        for part in tile.segments:
            whole, rows = segments[part.slot].visible(), part.visible()
            if rows is not None:
                assert (rows == whole[part.first : part.stop, : part.stop]).all()
                assert not whole[part.first : part.stop, part.stop :].any(), (
                    "no row sees later ones"
                )


def test_a_segment_whose_parents_are_a_chain_has_none():
    segment = Segment(0, 5, (1, 2, 3, 4), (-1, 0, 1, 2))
    assert segment.parents is None
    assert segment.positions().tolist() == [5, 6, 7, 8]
