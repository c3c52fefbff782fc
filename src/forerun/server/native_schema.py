"""What llama-server's own routes read besides the fields of sampling."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from forerun.core.errors import short_repr
from forerun.server.errors import ApiError
from forerun.server.schema import SampledAnswer, Strict
from forerun.text.tokenizer import Tokenizer

NEVER = -100.0
"""The bias of a token that is ruled out: what a request may ask for, and what llama-server writes as `false`."""
_BIASES = "pairs of a token id or text and a number (false: never), or an object of them"


class NativeRequest(SampledAnswer):
    """A text to continue, in llama-server's form."""

    prompt: Any
    """A text, token ids, a list that mixes them, or a list of prompts."""
    logit_bias: dict[str, Any] | list[Any] | None = None
    """By token id or by text, whose tokens then get it each; `false` rules a token out."""
    n_probs: int | None = None
    """Log-probabilities of the tokens and of this many likeliest ones."""
    return_tokens: bool = False
    """Add the ids of the answer's tokens."""
    response_fields: list[str] | None = None
    """Only these fields of the answer; `a/b` is the field b of the object a."""

    def scores(self) -> dict[str, int | None]:
        """`n_probs` asks for log-probabilities."""
        return {"logprobs": self.n_probs} if self.n_probs else {}

    def read_biases(self, tokenizer: Tokenizer) -> None:
        """Make `logit_bias` an object of token ids and numbers. Raises ApiError."""
        if self.logit_bias is None:
            return
        given = self.logit_bias
        pairs = [*given.items()] if isinstance(given, dict) else given
        found: dict[str, Any] = {}
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise _wrong(pair)
            token, value = pair
            value = NEVER if value is False else value
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _wrong(pair)
            found |= dict.fromkeys(_ids(token, tokenizer), float(value))
        self.logit_bias = found


def _ids(token: object, tokenizer: Tokenizer) -> list[str]:
    """The ids that a token is, as it is written in a bias."""
    if isinstance(token, str) and not token.isdecimal():
        return [str(one) for one in tokenizer.encode(token, bos=False)]
    if isinstance(token, bool) or not isinstance(token, int | str):
        raise _wrong(token)
    return [str(token)]


def _wrong(given: object) -> ApiError:
    return ApiError(
        400, f"logit_bias must be {_BIASES}, got {short_repr(given)}", param="logit_bias"
    )


class ExtraFile(Strict):
    """A file that says something about the one that is filled in."""

    text: str
    filename: str = ""


class InfillRequest(NativeRequest):
    """A hole in a text to fill, in llama-server's form."""

    prompt: str = ""
    """What stands before the hole already, after `input_prefix`."""
    input_prefix: str = ""
    """The text before."""
    input_suffix: str = ""
    """The text after."""
    input_extra: list[ExtraFile] = Field(default_factory=list)
    """Other files."""


class EmbeddingRequest(Strict):
    """Texts of which vectors are wanted."""

    model: str | None = None
    """One of /v1/models; left out, the one that is served."""
    input: Any = None
    """A text, token ids, or a list of either."""
    content: Any = None
    """The same, as llama-server's own route calls it."""
    encoding_format: str = "float"
    """`float`, or `base64`: the bytes of little-endian float32."""
    dimensions: int | None = None
    """Only as many as the model has."""
    embd_normalize: int = 2
    """The norm that vectors are divided by: 2, or -1 for none."""
    user: str | None = None
    """Requests are not told apart."""
