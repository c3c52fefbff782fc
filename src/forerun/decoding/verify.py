"""Verification: which drafted tokens the target accepts, and the target's own token after them.

One rule, for greedy, sampled and constrained decoding: take the token that plain decoding takes at a node, and
descend if a child carries it. The target's token is argmax_x (l_x + g_x), with its processed logits l and the noise g
of (seed, stream, position, token); greedy is g = 0. No draft enters it, so the text is the same whatever is drafted:
a bad draft costs time, nothing else.

Logits are processed only at the nodes the walk visits, under the grammar's state there. Where a sequence ends is not
looked at here: `stops` cuts the emitted tokens.

N nodes of the draft, V vocabulary, D width of the target's features.

Source: drafts that share the sampler's noise (Daliri et al., arXiv 2408.07978); the target's side of it.
"""

from __future__ import annotations

from forerun.core.arrays import Floats
from forerun.core.random import no_token
from forerun.core.types import Draft, Outcome, Seq, TopK
from forerun.decoding.processors import LogitsPipeline

Best = tuple[int, ...]
"""The target's likeliest token at each row, or the one drawn there, where that is all it takes; -1: there is none."""


def verify(
    seq: Seq,
    draft: Draft,
    logits: Floats | Best,
    pipeline: LogitsPipeline,
    *,
    hidden: Floats | None = None,
    top: TopK | None = None,
    best: Best | None = None,
) -> Outcome:
    """Walk down the draft from the root as far as the target agrees.

    `logits` (1 + N, V), raw fp32, are the target's at the root (row 0) and at node i (row 1 + i);
    they, `hidden` (1 + N, D) and `top` are handed on in the outcome. Where the pipeline needs only the
    likeliest token of each row, these will do in their place; so will tokens that the model drew, with the likeliest
    as `best`.
    Raises RequestError where the logits name no token.
    """
    if len(logits) != 1 + len(draft.tokens):
        raise ValueError(f"{len(logits)} rows of logits for a draft of {len(draft)} nodes")
    # Where tokens do, no text is looked at.
    generated = [] if isinstance(logits, tuple) else seq.generated
    grammar = pipeline.grammar_after(generated) if pipeline.has_grammar else None
    path: list[int] = []
    emitted: list[int] = []
    node, edges = -1, [*zip(draft.parents, draft.tokens, strict=True)]
    while True:
        row = logits[1 + node]
        if isinstance(row, int):
            token = row
            if token < 0:
                raise no_token()
        else:
            token = pipeline.choose(row, generated, grammar)
        emitted.append(token)
        generated.append(token)
        if grammar is not None:
            grammar = grammar.advance(token)
            if grammar is None:
                break  # the output ends here
        if (node, token) not in edges:
            break
        node = edges.index((node, token), node + 1)  # children come after their parents
        path.append(node)
    if isinstance(logits, tuple):
        return Outcome(tuple(path), tuple(emitted), best=best or logits, hidden=hidden, top=top)
    return Outcome(tuple(path), tuple(emitted), logits, hidden, top=top)
