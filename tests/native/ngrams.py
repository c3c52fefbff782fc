"""What is known of three texts, in the native tables and in their oracles."""

from __future__ import annotations

from forerun import _native
from tests.oracles import suffix_index, token_table
from tests.oracles.ngram_model import NGramModel, TextNGramModel

TEXTS = [[1, 4, 7, 1, 4, 9, 2, 1, 4], [3, 3, 5, 8, 3, 3, 5, 0, 3], [2, 2, 2, 2, 7]]


def parts(module=_native, tables=_native):
    """Indexes of the texts, one of what others said, no file, and a table that learned."""
    live, shared = tables.LiveTable(3, 1 << 16), module.SuffixIndex(8, 100)
    texts = [module.SuffixIndex(8) for _ in TEXTS]
    for number, (index, text) in enumerate(zip(texts, TEXTS, strict=True)):
        for i in range(len(text) - 1):
            live.learn(text[: i + 1], [text[i + 1], (text[i + 1] + 3) % 11], [0.7, 0.2])
        shared.extend(number, text[:5])
        index.extend(0, text)
    return texts, shared, None, live


def native():
    """The n-gram model that networks draft with."""
    return _native.TextNGramModel(*parts())


def oracle():
    """The same in Python."""
    texts, shared, file, live = parts(suffix_index, token_table)
    models = [NGramModel(file, live, (shared, text)) for text in texts]
    return TextNGramModel([text.last_tokens(0) for text in texts], models)
