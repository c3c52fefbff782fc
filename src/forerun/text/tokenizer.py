"""Text to token ids and back, for GGUF files and Hugging Face folders alike.

Encoding is the `tokenizers` library's. Decoding is ours: every id stands for some bytes, a text is
these bytes read as UTF-8. So decoding piece by piece (`TextStream`) gives the same text as decoding
at once. How an `Encoding` is found in a model's files is the business of `gguf_tokenizer.py` and
`hf_tokenizer.py`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import tokenizers

from forerun.core.errors import LoadError, RequestError
from forerun.core.pickling import OfOneProcess
from forerun.text.chat_template import ChatTemplate, check_syntax
from forerun.text.fill_in import FillIn
from forerun.text.messages import Message, Tools

T = TypeVar("T")

LONG_TEXT = 2048
"""Letters from which a text is encoded without holding the interpreter."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """What a model's files say about its tokens.

    `pieces[i]` is the bytes of id i, None where no token is (padding); `special_ids` are the
    control tokens; `eos_id` ends a text and is one of `eos_ids`, which end an answer. `prefix_ids`
    stand before a text, such as a BOS token, `suffix_ids` behind one that is complete; `adds_space`
    tells whether encoding puts a space before a text (SentencePiece), `chat_template` is None if
    the model has none.
    """

    encoder: tokenizers.Tokenizer
    pieces: Sequence[bytes | None]
    special_ids: frozenset[int]
    eos_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    prefix_ids: tuple[int, ...]
    adds_space: bool
    chat_template: str | None
    fill_in: FillIn | None = None
    """The tokens for filling text in; None if the model has none."""
    suffix_ids: tuple[int, ...] = ()


class Pieces(dict[int, bytes]):
    """The bytes of each token, worked out when they are first asked for; none of an id that is not a token."""

    def __init__(self, pieces: Sequence[bytes | None]) -> None:
        super().__init__()
        self._pieces = pieces

    def __missing__(self, token_id: int) -> bytes:
        is_known = 0 <= token_id < len(self._pieces)
        piece = self[token_id] = (self._pieces[token_id] if is_known else None) or b""
        return piece


@contextmanager
def damaged_if_raised(what: str) -> Iterator[None]:
    """Raise LoadError for what the tokenizers library raises: bare exceptions, and panics that are not even those."""
    try:
        yield
    except (LoadError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise LoadError(f"{what}: {error}") from error


class Tokenizer(OfOneProcess):
    """A model's tokenizer. `eos_ids` end an answer: end of text, of turn, of message."""

    instead = "pickle llm.get_tokenizer(), which encodes and decodes"

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self.pieces = Pieces(encoding.pieces)
        self.eos_ids, self.special_ids = encoding.eos_ids, encoding.special_ids
        self.bos_id = encoding.bos_id
        self.fill_in = encoding.fill_in
        self.suffix_ids = encoding.suffix_ids
        """What stands behind a text that is complete, as one to embed is."""
        known = (i for i in reversed(range(len(encoding.pieces))) if encoding.pieces[i] is not None)
        self.vocab_size = next(known, -1) + 1
        """Ids up to the last one that is a token; a model's head may be padded beyond it."""

    def encode(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        """Return the token ids of a text, after a BOS token if `bos`, or, for None, after what the model wants there.

        `special` reads control tokens written in the text as such. Raises RequestError for text
        that is not Unicode, or a BOS token the model does not have.
        """
        encoder = self._encoding.encoder
        if not special and any(word in text for word in self.special_texts):
            encoder = self._plain_encoder
        try:
            ids: list[int] = _encode(encoder, text)
        except TypeError as error:
            raise RequestError(
                "the text is not valid Unicode: it holds a lone surrogate"
            ) from error
        if not bos:
            return ids if bos is False else [*self._encoding.prefix_ids, *ids]
        if self.bos_id is None:
            raise RequestError("the model has no BOS token: leave bos out, or give bos=False")
        return [self.bos_id, *ids]

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = True, is_start: bool = True
    ) -> str:
        """Return the text of the ids; bytes that are not UTF-8 become U+FFFD.

        `is_start` says that the ids begin a text, so that the space which SentencePiece models put
        there is taken away; text that follows other text keeps it.
        """
        stream = TextStream(self, skip_special=skip_special, is_start=is_start)
        return stream.push(ids) + stream.flush()

    @property
    def encoder(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, which encodes: without a BOS token, or the chat template."""
        return self._encoding.encoder

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes a token stands for; None for an id the tokenizer does not know (padding)."""
        pieces = self._encoding.pieces
        return pieces[token_id] if 0 <= token_id < len(pieces) else None

    def is_special(self, token_id: int) -> bool:
        """Return True for a control token, which is not part of the text."""
        return token_id in self.special_ids

    @property
    def adds_space(self) -> bool:
        """True if encoding puts a space before a text."""
        return self._encoding.adds_space

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Tools | None = None,
        chat_template: str | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the conversation as the model was trained to read it; encode it with `bos=False`.

        `chat_template` takes the place of the model's own; `variables` are what it reads besides. Raises RequestError
        if there is no template, or it refuses the messages.
        """
        given = None if chat_template is None else self.template(ChatTemplate, chat_template)
        template = given or self._chat_template
        return template.render(messages, add_generation_prompt, tools, variables)

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, one of `eos_ids`."""
        return self._encoding.eos_id

    @property
    def chat_template(self) -> str | None:
        """The model's template, None if it has none."""
        return self._encoding.chat_template

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max((len(piece) for piece in self._encoding.pieces if piece), default=1)

    @cached_property
    def special_texts(self) -> Mapping[str, int]:
        """The control tokens' ids by their texts."""
        return {text: i for i in self._encoding.special_ids if (text := self.text_of(i))}

    @cached_property
    def _plain_encoder(self) -> tokenizers.Tokenizer:
        """An encoder that reads control tokens as text: as large as the other one, and made when first needed.

        Switching the other one to and fro would make texts wait for each other.
        """
        encoder = tokenizers.Tokenizer.from_str(self._encoding.encoder.to_str())
        encoder.encode_special_tokens = True
        return encoder

    def use_chat_template(self, source: str) -> None:
        """Take another template in place of the model's own. Raises RequestError if it is not valid Jinja."""
        check_syntax(source)
        self._encoding = replace(self._encoding, chat_template=source)
        self.__dict__.pop("_chat_template", None)

    @property
    def reads_tools(self) -> bool:
        """True if the model's template has a place for tools. Raises RequestError if there is no template."""
        return self._chat_template.reads_tools

    @property
    def content_forms(self) -> Mapping[str, str | None]:
        """How the template reads contents (`ChatTemplate.content_forms`). Raises RequestError if there is none."""
        return self._chat_template.content_forms

    def template(self, kind: Callable[[str, str, str], T], source: str | None = None) -> T:
        """Make a renderer (`ChatTemplate`, `TemplateProcess`) of the model's template, or of a given one.

        Raises RequestError if there is none.
        """
        source = self.chat_template if source is None else source
        if source is None:
            raise RequestError(
                "the model has no chat template: complete the text as it is (--raw, llm.generate), "
                "give a template (--chat-template chatml), or use an instruction-tuned model"
            )
        return kind(source, self.text_of(self.bos_id), self.text_of(self.eos_id))

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        return self.template(ChatTemplate)

    def one_id(self, text: str) -> int | None:
        """Return the id of a text that is one token, None for another."""
        ids = self.encode(text, bos=False)
        return ids[0] if len(ids) == 1 else None

    def text_of(self, token_id: int | None) -> str:
        """Return the text of one token by itself, control tokens too; empty for None."""
        return (
            ""
            if token_id is None
            else (self.token_bytes(token_id) or b"").decode("utf-8", "replace")
        )


def _encode(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
    """Return the ids of a text. A long one is a batch of one: that lets Python's other threads run meanwhile."""
    if len(text) < LONG_TEXT:
        return list(encoder.encode(text, add_special_tokens=False).ids)
    return list(encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids)


class TextStream:
    """Text from tokens, as it becomes final: an incomplete character is held back.

    What `push` returned and `flush` returns makes up `Tokenizer.decode` of all ids with the same
    settings.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, is_start: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special else frozenset[int]()
        self._drop_space = is_start and tokenizer.adds_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that these tokens make final, after those pushed before."""
        pieces, hidden = self._tokenizer.pieces, self._hidden
        text = b"".join([pieces[i] for i in token_ids if i not in hidden])
        if self._drop_space and text:
            self._drop_space, text = False, text.removeprefix(b" ")
        return self._decoder.decode(text)

    def hidden_in(self, text: str) -> dict[str, int]:
        """Return the control tokens that are written in a text, and left out of what is pushed."""
        if not self._hidden:
            return {}
        return {word: i for word, i in self._tokenizer.special_texts.items() if word in text}

    def flush(self) -> str:
        """Return the rest of the text: no token will follow."""
        return self._decoder.decode(b"", final=True)
