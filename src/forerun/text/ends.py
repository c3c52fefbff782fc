"""Which tokens end an answer: one rule for all files, by what they name and by how tokens are written.

Files often name one end only, the text's, while an answer in a chat ends with the turn's. So tokens that are written
as an end is in a known model are ends too, as in llama.cpp, and those after which there is nothing more to fill in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forerun.text.fill_in import NAMES, FillIn

END_TEXTS = (
    *("</s>", "<eos>", "[EOS]", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"),
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>"),
    *("<EOT>", "_<EOT>", "▁<EOT>", "[EOT]", "[e~[", "<turn|>", "<|tool_response>"),
    *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>"),
    *("<|file_sep|>", "<|repo_name|>", "<reponame>", *NAMES["pad"]),
)
"""Of the known models: ends of texts and turns; of MiniMax and Gemma 4; of messages to a reader or a tool; what parts
files, and padding."""

_NO_ENDS = {
    ("<|return|>", "<|call|>"): "<|end|>",
    ("<|flush|>", "<|call|>"): "<|end|>",
    ("<|flush|>", "<|calls|>"): "<|end|>",
    ("<|tool_response>",): "</s>",
    ("<|plamo:eos|>",): "</s>",
    ("<eos>", "<end_of_turn>"): "</s>",
}
"""What is none where these are there: gpt-oss and Solar go on with the next message, Gemma and PLaMo write HTML."""


def written_ends(id_of: Callable[[str], int | None]) -> set[int]:
    """Return the ids of tokens that are written as an end; `id_of` returns the id of a token's text, or None."""
    return {i for text in END_TEXTS if (i := id_of(text)) is not None} - _others(id_of)


def end_ids(
    id_of: Callable[[str], int | None], named: Iterable[int | None], fill_in: FillIn | None
) -> frozenset[int]:
    """Return the ids that end an answer, of which the files have `named` some."""
    ends = {i for i in named if i is not None} - _others(id_of)
    return frozenset(ends | written_ends(id_of) | {*(fill_in.ends if fill_in else ())})


def _others(id_of: Callable[[str], int | None]) -> set[int]:
    """Return the ids of tokens that look like an end, and are none in this vocabulary."""
    found = {
        id_of(text)
        for beside, text in _NO_ENDS.items()
        if all(id_of(other) is not None for other in beside)
    }
    return {i for i in found if i is not None}
