from __future__ import annotations

from dataclasses import dataclass

from forerun.drafters.base.vocabulary import vocabulary_difference


@dataclass
class Pieces:
    """A vocabulary that is a list."""

    pieces: list[bytes | None]

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def token_bytes(self, token_id: int) -> bytes | None:
        return self.pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return False


def test_equal_and_padded_vocabularies_agree() -> None:
    plain = Pieces([b"a", b"b", b"\xff"])
    assert vocabulary_difference(plain, plain) is None
    assert vocabulary_difference(plain, Pieces([*plain.pieces, None, b"extra"])) is None
    assert vocabulary_difference(Pieces([b"a", None, b"\xff"]), plain) is None


def test_the_first_difference_is_named_with_both_pieces() -> None:
    difference = vocabulary_difference(Pieces([b"a", b"b", b"c"]), Pieces([b"a", b"\xff", b"d"]))
    assert difference == r"token id 1 is 'b' to the target and '\\xff' to the draft"
