"""The prompts of holes in a text, for a model that was trained to fill them."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.server.errors import ApiError
from forerun.server.service import Service
from forerun.text.fill_in import FillIn
from forerun.text.prompt import Encoded


def tokens_of(service: Service, what: str) -> FillIn:
    """Return the model's tokens for filling in. Raises ApiError for a model without."""
    tokens = service.llm().tokenizer.fill_in
    if tokens is None:
        raise ApiError(
            501 if what.startswith("/") else 400,
            f"{what} needs a model that was trained to fill text in, such as Qwen2.5-Coder or StarCoder: "
            f"{service.names[0]} has no such tokens (prefix, suffix, middle)",
            param=None if what.startswith("/") else what,
            type="not_supported_error",
        )
    return tokens


def filled(
    service: Service,
    tokens: FillIn,
    before: str,
    after: str,
    params: tuple[str, str],
    files: Sequence[tuple[str, str]] = (),
) -> Encoded:
    """Make the prompt for a hole; control tokens written in the texts are read as text.

    `params` are the fields with the texts before and after it. Raises ApiError for one that cannot fit.
    """
    tokenizer = service.llm().tokenizer
    for text, param in (
        (before, params[0]),
        (after, params[1]),
        *((t, "input_extra") for _, t in files),
    ):
        service.check_fits(text, param)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, special=False, bos=False) if text else []

    start = tokenizer.encode("", bos=None)
    return Encoded([*start, *tokens.prompt(before, after, files, encode)])
