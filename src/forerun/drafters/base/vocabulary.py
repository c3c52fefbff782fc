"""What token ids stand for, as a drafter sees them, and whether two tokenizers mean the same by their ids."""

from __future__ import annotations

import hashlib
from typing import Protocol
from weakref import WeakKeyDictionary

_SAMPLED = 64
"""Every so many ids are compared: a wrong guess costs time, never a token."""


class Vocabulary(Protocol):
    """The part of a tokenizer that drafters use."""

    vocab_size: int

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes a token stands for; None for an id the tokenizer does not know (padding)."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Say whether a token is a special one, such as the end of a text, and not part of one."""
        ...


def fingerprint(vocabulary: Vocabulary) -> str:
    """Identify a vocabulary by its size and a hash of every 64th token."""
    if (known := _fingerprints.get(vocabulary)) is None:
        ids = range(0, vocabulary.vocab_size, _SAMPLED)
        pieces = b"\0".join(vocabulary.token_bytes(i) or b"" for i in ids)
        known = f"{vocabulary.vocab_size}-{hashlib.sha256(pieces).hexdigest()[:16]}"
        _fingerprints[vocabulary] = known
    return known


_fingerprints = WeakKeyDictionary[Vocabulary, str]()
"""Each file that may draft compares itself with the target's: 14,000 tokens at a start with Qwen2.5."""


def vocabulary_difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """Name the first id that both know and read differently; None if they agree.

    Ids that only one of them knows do no harm: models of one family are padded to different sizes.
    """
    for token_id in range(min(target.vocab_size, draft.vocab_size)):
        pieces = [vocabulary.token_bytes(token_id) for vocabulary in (target, draft)]
        if None not in pieces and pieces[0] != pieces[1]:
            of_target, of_draft = (
                repr((p or b"").decode(errors="backslashreplace")) for p in pieces
            )
            return f"token id {token_id} is {of_target} to the target and {of_draft} to the draft"
    return None
