"""A causal reranker (Qwen3-Reranker): asked whether a document answers a query, its next token is yes or no."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import RequestError, short_repr
from forerun.text.chat_template import THINKING_SWITCHES, ChatTemplate
from forerun.text.messages import Message
from forerun.text.parsing.forms import form_of, without_thought
from forerun.text.parsing.thought import ReasoningTags
from forerun.text.prompt import Encoded, Prompt, split
from forerun.text.template_process import TemplateProcess
from forerun.text.tokenizer import Tokenizer

_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""What Qwen3-Reranker was trained with, as its model card says."""

Template = ChatTemplate | TemplateProcess
T = TypeVar("T")


def is_reranker(path: Path) -> bool:
    """Tell whether a model's file or folder is called one."""
    return "rerank" in path.name.lower()


@dataclass(frozen=True, slots=True)
class Reranker:
    """Writes the question, and reads the answer."""

    template: Template
    thinking: ReasoningTags | None
    yes: int
    no: int
    """Token ids."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: Template | None = None) -> Self:
        """Return one with the model's own template, or as it is given.

        Raises RequestError for a model without a template or without such tokens.
        """
        yes, no = (tokenizer.encode(word, bos=False)[0] for word in ("yes", "no"))
        if yes == no:
            raise RequestError("this model has no tokens for yes and no: give a reranker")
        template = template or tokenizer.template(ChatTemplate)
        thinking = form_of(tokenizer.chat_template, tokenizer.encoder.token_to_id).thinking
        return cls(template, thinking, yes, no)

    def prompt(
        self,
        query: str,
        document: str,
        instruction: str = INSTRUCTION,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Write the question; `variables` are what the template reads besides. Raises RequestError."""
        asked = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        messages: list[Message] = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": asked},
        ]
        off = {name: False for name in THINKING_SWITCHES if name in self.template.names}
        text = self.template.render(messages, True, None, {**(variables or {}), **off})
        return text if off else without_thought(text, self.thinking)

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability of yes against no of each row: logits (n, V) to (n,)."""
        against = logits[:, self.no] - logits[:, self.yes]
        return np.asarray(1 / (1 + np.exp(against)), np.float32)


def questions(
    tokenizer: Tokenizer, queries: Prompt | Sequence[Prompt], documents: Prompt | Sequence[Prompt]
) -> tuple[Reranker, list[Encoded]]:
    """Write a question for each pair; a query in the form of Qwen's model card is followed by the document as it is.

    Raises RequestError.
    """
    own = Reranker.of(tokenizer)

    def asked(query: object, document: object) -> str:
        for one in (query, document):
            if not isinstance(one, str):
                raise RequestError(f"a reranker needs texts, got {short_repr(one)}")
        query, document = str(query), str(document)
        return query + document if "<Query>" in query else own.prompt(query, document)

    texts = [asked(*pair) for pair in pairs(split(queries), split(documents))]
    return own, [Encoded(tokenizer.encode(text, bos=False), text) for text in texts]


def pairs(firsts: Sequence[T], seconds: Sequence[T]) -> list[tuple[T, T]]:
    """Return what is compared: one with all others, or pair by pair. Raises RequestError for other numbers of them."""
    if len(firsts) == 1:
        firsts = [*firsts] * len(seconds)
    if len(firsts) != len(seconds):
        raise RequestError(
            f"{len(firsts)} and {len(seconds)} texts cannot be compared: give one, or as many of both"
        )
    return [*zip(firsts, seconds, strict=True)]
