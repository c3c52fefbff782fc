"""Do two vocabularies mean the same by their ids? A draft's ids are used as they are."""

from __future__ import annotations

from forerun.drafting.base import Vocabulary


def vocabulary_difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """The first id that both know and read differently, in words; None if they agree.

    Ids that only one of them knows do no harm: models of one family are padded to different sizes.
    """
    for token_id in range(min(target.vocab_size, draft.vocab_size)):
        pieces = [vocabulary.token_bytes(token_id) for vocabulary in (target, draft)]
        if None not in pieces and pieces[0] != pieces[1]:
            ours, theirs = (repr((p or b"").decode(errors="backslashreplace")) for p in pieces)
            return f"token id {token_id} is {ours} to the target and {theirs} to the draft"
    return None
