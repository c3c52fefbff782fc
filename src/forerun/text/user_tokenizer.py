"""The tokenizer under the names and with the defaults of Hugging Face's, for code that was written for those."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forerun.core.errors import RequestError, reject, unknown
from forerun.text.messages import Message, Tools
from forerun.text.prompt import is_message, items_of
from forerun.text.tokenizer import Tokenizer

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "clean_up_tokenization_spaces": (None, False),
    "continue_final_message": (False,),
    "documents": (None,),
    "max_length": (None,),
    "padding": (False, True),  # only one text at a time becomes a tensor
    "return_assistant_tokens_mask": (False,),
    "truncation": (None, False),
    "verbose": (True, False),
}
"""Hugging Face's further arguments, with the values that ask for nothing."""


class UserTokenizer:
    """What `LLM.get_tokenizer()` gives: call it, or `encode`, `decode`, `apply_chat_template` as in transformers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.bos_token_id, self.eos_token_id = tokenizer.bos_id, tokenizer.eos_id
        self.bos_token = tokenizer.text_of(tokenizer.bos_id) or None
        self.eos_token = tokenizer.text_of(tokenizer.eos_id) or None
        self.chat_template = tokenizer.chat_template
        self.vocab_size = tokenizer.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        return_tensors: str | None = None,
        **others: object,
    ) -> dict[str, Any]:
        """Return `input_ids` and `attention_mask` of a text, or lists of them; `pt` and `np` make tables of one row."""
        _check(others)
        if isinstance(text, str):
            return _encoded(
                self.encode(text, add_special_tokens=add_special_tokens), return_tensors
            )
        if return_tensors is not None:
            raise RequestError("texts of different lengths make no tensor: give one text")
        rows = [self.encode(row, add_special_tokens=add_special_tokens) for row in text]
        return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}

    def encode(self, text: str, *, add_special_tokens: bool = True, **others: object) -> list[int]:
        """Return the token ids of a text, after a BOS token if the model wants one."""
        _check(others)
        return self._tokenizer.encode(text, bos=None if add_special_tokens else False)

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False, **others: object) -> str:
        """Return the text of token ids: one, a list, or a tensor or array of one dimension."""
        _check(others)
        ids = [token_ids] if isinstance(token_ids, int) else items_of(token_ids)
        return self._tokenizer.decode(map(int, ids), skip_special=skip_special_tokens)

    def batch_decode(self, sequences: Iterable[Any], **settings: Any) -> list[str]:
        """Return the texts of several lists of token ids."""
        return [self.decode(ids, **settings) for ids in sequences]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the text of every token by itself."""
        return [self._tokenizer.text_of(int(i)) for i in ids]

    def apply_chat_template(
        self,
        conversation: Sequence[Message] | Sequence[Sequence[Message]],
        tools: Tools | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_tensors: str | None = None,
        return_dict: bool = False,
        **variables: object,
    ) -> Any:
        """Return the token ids of a conversation, or its text with `tokenize=False`; of several conversations a list.

        Other keywords are variables of the template. Raises RequestError if it refuses the messages.
        """
        _check({name: variables.pop(name) for name in variables.keys() & _NEUTRAL.keys()})
        is_one = not conversation or is_message(conversation[0])
        texts = [
            self._tokenizer.apply_chat_template(
                messages,  # type: ignore[arg-type]
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                chat_template=chat_template,
                variables=variables,
            )
            for messages in ([conversation] if is_one else conversation)
        ]
        if not tokenize:
            return texts[0] if is_one else texts
        rows = [self.encode(text, add_special_tokens=False) for text in texts]
        if not is_one and return_tensors is not None:
            raise RequestError("conversations of different lengths make no tensor: give one")
        encoded = _encoded(rows[0], return_tensors) if is_one else {"input_ids": rows}
        return encoded if return_dict else encoded["input_ids"]


def _check(others: dict[str, object]) -> None:
    names = ("add_special_tokens", "return_tensors", "skip_special_tokens", *_NEUTRAL)
    reject(others, _NEUTRAL, "argument of the tokenizer", names)


def _encoded(ids: list[int], kind: str | None) -> dict[str, Any]:
    """Return the ids and their mask as lists, or as tensors of one row."""
    ones = [1] * len(ids)
    if kind is None:
        return {"input_ids": ids, "attention_mask": ones}
    if kind == "pt":
        import torch

        return {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([ones])}
    if kind == "np":
        import numpy as np

        return {"input_ids": np.array([ids]), "attention_mask": np.array([ones])}
    raise RequestError(unknown("kind of tensors", kind, ("pt", "np")))
