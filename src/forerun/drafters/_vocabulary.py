"""Do two vocabularies mean the same by their ids? A draft's ids are used as they are."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.drafters.base import Vocabulary


@dataclass(frozen=True, slots=True)
class VocabularyDiff:
    """The first id that stands for something else to the draft than to the target."""

    token_id: int
    target_piece: bytes
    draft_piece: bytes

    def __str__(self) -> str:
        return (
            f"token id {self.token_id} is {_show(self.target_piece)} to the target "
            f"and {_show(self.draft_piece)} to the draft"
        )


def compare_vocabularies(target: Vocabulary, draft: Vocabulary) -> VocabularyDiff | None:
    """The first id that both know and read differently; None if they agree.

    Ids that only one of them knows do no harm: models of one family are padded to different sizes.
    """
    for token_id in range(min(target.vocab_size, draft.vocab_size)):
        target_piece, draft_piece = target.token_bytes(token_id), draft.token_bytes(token_id)
        if target_piece is None or draft_piece is None or target_piece == draft_piece:
            continue
        return VocabularyDiff(token_id, target_piece, draft_piece)
    return None


def _show(piece: bytes) -> str:
    return repr(piece.decode("utf-8", errors="backslashreplace"))
