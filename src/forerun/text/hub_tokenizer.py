"""A tokenizer with the methods of transformers', which scripts of vLLM call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from forerun.core.errors import RequestError
from forerun.text.chat_template import ChatTemplate
from forerun.text.messages import Message, Tools, render_unfinished
from forerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers


class TokenIds(list[int]):
    """Token ids, which know the `tokenizers.Encoding` that they are of: `.ids`, `.tokens`, `.offsets`."""

    def __init__(self, encoding: tokenizers.Encoding) -> None:
        super().__init__(encoding.ids)
        self._encoding = encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_encoding"], name)


class HubTokenizer:
    """The `tokenizers.Tokenizer` of a model, and what transformers' tokenizers have besides."""

    def __init__(
        self, encoder: tokenizers.Tokenizer, chat_template: str | None, bos: str, eos: str
    ) -> None:
        """`bos` and `eos` are the texts of the tokens at a text's ends."""
        self._encoder, self.chat_template = encoder, chat_template
        self.bos_token, self.eos_token = bos, eos

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> HubTokenizer:
        """Return the library's tokenizer that one of ours is made of."""
        ends = (tokenizer.text_of(tokenizer.bos_id), tokenizer.text_of(tokenizer.eos_id))
        return cls(tokenizer.encoder, tokenizer.chat_template, *ends)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._encoder, name)

    def __len__(self) -> int:
        return int(self._encoder.get_vocab_size())

    def __call__(self, text: str | Sequence[str], **options: Any) -> dict[str, Any]:
        """Encode a text or several, as `input_ids` and `attention_mask`."""
        options = {name: value for name, value in options.items() if name == "add_special_tokens"}
        texts = [text] if isinstance(text, str) else [*text]
        found = [[*self.encode(one, **options)] for one in texts]
        both: dict[str, Any] = {
            "input_ids": found,
            "attention_mask": [[1] * len(ids) for ids in found],
        }
        return {name: many[0] for name, many in both.items()} if isinstance(text, str) else both

    def encode(self, text: str, *given: Any, **options: Any) -> TokenIds:
        """Encode a text: a list of ids, which has what `tokenizers.Encoding` has, too."""
        return TokenIds(self._encoder.encode(text, *given, **options))

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = True, **_: Any) -> str:
        """Return the text of token ids."""
        given = [ids] if isinstance(ids, int) else [*ids]
        return str(self._encoder.decode(given, skip_special_tokens=skip_special_tokens))

    @property
    def vocab_size(self) -> int:
        """Count the tokens that are not added ones."""
        return int(self._encoder.get_vocab_size(with_added_tokens=False))

    @property
    def eos_token_id(self) -> int | None:
        """Return the token that ends a text."""
        found: int | None = self._encoder.token_to_id(self.eos_token)
        return found

    @property
    def bos_token_id(self) -> int | None:
        """Return the token that begins a text."""
        found: int | None = self._encoder.token_to_id(self.bos_token)
        return found

    def get_vocab(self) -> dict[str, int]:
        """Return the ids by token."""
        return dict(self._encoder.get_vocab())

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return the id of a token, or those of several."""
        if isinstance(tokens, str):
            return self._encoder.token_to_id(tokens)
        return [self._encoder.token_to_id(one) for one in tokens]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """Return the token of an id, or those of several."""
        if isinstance(ids, int):
            return self._encoder.id_to_token(ids)
        return [self._encoder.id_to_token(one) for one in ids]

    def apply_chat_template(
        self,
        conversation: Sequence[Message],
        tools: Tools | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        **variables: object,
    ) -> Any:
        """Write a conversation as the model reads it, as token ids or as text. Raises RequestError."""
        template = self._template if chat_template is None else self._compiled(chat_template)
        known: Mapping[str, object] = {
            name: value for name, value in variables.items() if name in template.names
        }

        def render(messages: Sequence[Message], begins: bool = False) -> str:
            return template.render(messages, begins, tools, known)

        if continue_final_message:
            text = render_unfinished(conversation, render)
        else:
            text = render(conversation, add_generation_prompt)
        return [*self.encode(text, add_special_tokens=False)] if tokenize else text

    @cached_property
    def _template(self) -> ChatTemplate:
        if self.chat_template is None:
            raise RequestError("the model has no chat template: give chat_template")
        return self._compiled(self.chat_template)

    def _compiled(self, source: str) -> ChatTemplate:
        return ChatTemplate(source, self.bos_token, self.eos_token)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_template"}
