"""What the engine itself does to a draft, whoever proposed it: what is allowed, what is predicted, what is forced."""

from __future__ import annotations

from forerun.core.types import Draft
from forerun.decoding.grammar import with_forced, without_forbidden
from forerun.engine.request import RequestState


def fitting(request: RequestState, draft: Draft) -> Draft:
    """The nodes that lie before the end of the output and that the grammar allows."""
    draft = draft.trim_depth(request.stops.tokens_left - 1)
    grammar = request.pipeline.grammar_after(request.seq.generated)
    return draft if grammar is None else without_forbidden(draft, grammar)


def extended(request: RequestState, draft: Draft, room: int, *, with_grammar: bool) -> Draft:
    """The draft with the user's prediction and, `with_grammar`, what the grammar forces; new nodes come last."""
    seq = request.seq
    if request.prediction is not None:
        draft = fitting(request, request.prediction.extend(draft, seq.generated, room))
    grammar = request.pipeline.grammar_after(seq.generated) if with_grammar else None
    if grammar is None:
        return draft
    return with_forced(draft, grammar, room, request.stops.tokens_left - 1)
