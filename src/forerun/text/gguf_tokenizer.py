"""The tokenizer inside a GGUF's metadata: byte-level BPE (`gpt2`) or SentencePiece BPE (`llama`, `gemma4`).

Token ids equal llama.cpp's, the reference for this format, which the tests hold against recorded
ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Encoder
from tokenizers.models import BPE

from forerun.core.errors import LoadError, short_repr, unknown
from forerun.text.chat_template import with_tool_use
from forerun.text.ends import end_ids, written_ends
from forerun.text.fill_in import FillIn
from forerun.text.pieces import SPACE, byte_level_piece, sentencepiece_piece
from forerun.text.pretokenizers import LINES, pre_tokenizer
from forerun.text.tokenizer import Encoding, Tokenizer, damaged_if_raised

T = TypeVar("T")


class TokenType(IntEnum):
    """What a token is for, as `tokenizer.ggml.token_type` numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)
_PHI3_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")
_LONGEST_TOKEN = 4096  # all cuts of a token are tried
_FILL_KEYS = {
    **{"prefix": "pre", "suffix": "suf", "middle": "mid"},
    **{"file": "sep", "repo": "rep", "pad": "pad"},
}
"""`FillIn`'s fields in `tokenizer.ggml.fim_<key>_token_id`."""


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """Return the tokenizer of a GGUF's metadata. Raises LoadError that does not name the file."""
    fields = _Fields(metadata)
    kind = fields.get("model", str)
    if kind is None:
        raise LoadError("there is no tokenizer in the metadata (no tokenizer.ggml.model)")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _lines}
    if kind not in builders:
        raise LoadError(unknown("tokenizer", kind, builders))
    vocabulary = _Vocabulary(fields)
    with damaged_if_raised("the tokenizer in the metadata is damaged"):
        return Tokenizer(builders[kind](vocabulary))


_NO_ID = 2**32 - 1
"""What llama.cpp writes for a token that there is not."""


class _Fields:
    """The keys below `tokenizer.ggml.`, checked for their types."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def get(self, key: str, kind: type[T], prefix: str = "tokenizer.ggml.") -> T | None:
        """Return the value, None if there is none. Raises LoadError if it is of another type."""
        value = self._metadata.get(prefix + key)
        if value is None or (isinstance(value, kind) and isinstance(value, bool) == (kind is bool)):
            return value
        raise LoadError(f"the metadata is corrupt: {prefix}{key} is no {kind.__name__}")

    def list(self, key: str, kind: type[T]) -> list[T]:
        """Return the list, empty if there is none. Raises LoadError if it is not a list of that type."""
        values: list[T] = self.get(key, list) or []
        if values and not isinstance(values[0], kind):
            raise LoadError(
                f"the metadata is corrupt: tokenizer.ggml.{key} holds no {kind.__name__}"
            )
        return values


class _Vocabulary:
    """The tokens, what they are for and, for SentencePiece, their scores; the fields they come from."""

    def __init__(self, fields: _Fields) -> None:
        self.fields = fields
        self.tokens = tokens = fields.list("tokens", str)
        if not tokens:
            raise LoadError("there is no vocabulary in the metadata (no tokenizer.ggml.tokens)")
        if max(map(len, tokens)) > _LONGEST_TOKEN:
            raise LoadError(
                f"the metadata is corrupt: a token has more than {_LONGEST_TOKEN} letters"
            )
        types = fields.list("token_type", int) or [TokenType.NORMAL] * len(tokens)
        self.scores = fields.list("scores", float) or [0.0] * len(tokens)
        if not len(tokens) == len(types) == len(self.scores):
            raise LoadError(
                f"the metadata is corrupt: {len(tokens)} tokens have {len(types)} types "
                f"and {len(self.scores)} scores"
            )
        self.ids = dict(zip(tokens, range(len(tokens))))
        self.types = np.array(types)
        # llama.cpp takes what is written like an end token for one, even if the file calls it a word.
        self.types[[*written_ends(self.ids.get)]] = TokenType.CONTROL

    def of(self, *kinds: TokenType) -> dict[int, str]:
        """Return the tokens of some kinds, by id."""
        return {i: self.tokens[i] for i in np.flatnonzero(np.isin(self.types, kinds)).tolist()}

    def id_of(self, key: str, default: int | None = None) -> int | None:
        """Return the id under `<key>_token_id`. Raises LoadError if there is no such token."""
        token_id = self.fields.get(f"{key}_token_id", int)
        token_id = default if token_id in (None, _NO_ID) else token_id
        if token_id is None or 0 <= token_id < len(self.tokens):
            return token_id
        raise LoadError(
            f"the metadata is corrupt: {key}_token_id is {token_id} of {len(self.tokens)} tokens"
        )


def _byte_level(vocabulary: _Vocabulary) -> Encoding:
    fields = vocabulary.fields
    name = fields.get("pre", str) or "default"
    if name in LINES:
        return _lines(vocabulary)
    rule = pre_tokenizer(name)
    encoder = Encoder(BPE(vocabulary.ids, _pairs(fields), ignore_merges=rule.whole_words))
    encoder.pre_tokenizer = rule.build()
    encoder.decoder = decoders.ByteLevel()
    return _encoding(vocabulary, encoder, byte_level_piece, adds_bos=rule.adds_bos)


def _pairs(fields: _Fields) -> list[tuple[str, str]]:
    """Return the merges. Raises LoadError for one that is not a pair."""
    merges = fields.list("merges", str)
    pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]
    for i in [i for i, (first, second) in enumerate(pairs) if not (first and second)]:
        merge = merges[i]
        cut = merge.find(" ", 1)  # a token may be a space: the first character parts nothing
        if cut < 0:
            raise LoadError(
                f"the metadata is corrupt: {short_repr(merge)} in tokenizer.ggml.merges is not a pair"
            )
        pairs[i] = merge[:cut], merge[cut + 1 :]
    return pairs


def _sentencepiece(vocabulary: _Vocabulary) -> Encoding:
    unknown_id = vocabulary.id_of("unknown", default=0)
    model = BPE(
        vocabulary.ids,
        list(_merges(vocabulary)),
        unk_token=vocabulary.tokens[unknown_id or 0],
        fuse_unk=True,
        byte_fallback=True,
    )
    encoder = Encoder(model)
    adds_space = vocabulary.fields.get("add_space_prefix", bool) is not False
    encoder.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend(SPACE)] if adds_space else []), normalizers.Replace(" ", SPACE)]
    )
    encoder.decoder = _decoder(adds_space)
    return _encoding(
        vocabulary,
        encoder,
        sentencepiece_piece,
        adds_bos=True,
        adds_space=adds_space,
        default_bos=1,
        default_eos=2,
    )


def _lines(vocabulary: _Vocabulary) -> Encoding:
    """Read SentencePiece BPE with its merges in the file, which never reach over the end of a line (Gemma 4)."""
    merges = _pairs(vocabulary.fields)
    unknown_id = vocabulary.id_of("unknown", default=0)
    unknown_token = vocabulary.tokens[unknown_id or 0]
    model = BPE(vocabulary.ids, merges, unk_token=unknown_token, fuse_unk=True, byte_fallback=True)
    encoder = Encoder(model)
    encoder.normalizer = normalizers.Replace(" ", SPACE)
    encoder.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    encoder.decoder = _decoder(adds_space=False)
    breaks = [token for token in vocabulary.tokens if not token.strip("\n")]
    encoder.add_tokens([AddedToken(token, normalized=False) for token in breaks if token])
    return _encoding(vocabulary, encoder, sentencepiece_piece, adds_bos=True, default_bos=2)


def _decoder(adds_space: bool) -> decoders.Decoder:
    """Return what makes text of SentencePiece's tokens, for callers of the library's tokenizer."""
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if adds_space else [])])


def _merges(vocabulary: _Vocabulary) -> Iterator[tuple[str, str]]:
    """Yield what SentencePiece merges: any two tokens that make a third, the best score first."""
    normal = {
        token: score
        for token, kind, score in zip(
            vocabulary.tokens, vocabulary.types.tolist(), vocabulary.scores
        )
        if kind == TokenType.NORMAL
    }
    for token in sorted(normal, key=lambda token: -normal[token]):
        for cut in range(1, len(token)):
            if token[:cut] in normal and token[cut:] in normal:
                yield token[:cut], token[cut:]


def _encoding(
    vocabulary: _Vocabulary,
    encoder: Encoder,
    normal_piece: Callable[[str], bytes],
    *,
    adds_bos: bool,
    adds_space: bool = False,
    default_bos: int | None = None,
    default_eos: int | None = None,
) -> Encoding:
    """Read what both kinds of tokenizer share: special tokens, BOS and EOS, the chat template."""
    fields = vocabulary.fields
    _add_special_tokens(encoder, vocabulary, fields.get("name", str, "general.") or "")
    special = vocabulary.of(*_SPECIAL)
    bos_id, eos_id = vocabulary.id_of("bos", default_bos), vocabulary.id_of("eos", default_eos)
    fill_in = FillIn.find(vocabulary.ids.get, _fill_ids(vocabulary))
    named = (eos_id, vocabulary.id_of("eot"), vocabulary.id_of("eom"))
    if (said := fields.get("add_bos_token", bool)) is not None:
        adds_bos = said
    adds_eos = fields.get("add_eos_token", bool) or False
    return Encoding(
        encoder=encoder,
        pieces=_Pieces(vocabulary, normal_piece),
        special_ids=frozenset(special),
        eos_ids=end_ids(vocabulary.ids.get, named, fill_in),
        bos_id=bos_id,
        eos_id=eos_id,
        prefix_ids=(bos_id,) if adds_bos and bos_id is not None else (),
        suffix_ids=(eos_id,) if adds_eos and eos_id is not None else (),
        adds_space=adds_space,
        chat_template=_chat_template(fields),
        fill_in=fill_in,
    )


def _chat_template(fields: _Fields) -> str | None:
    template, tool_use = (
        fields.get(f"chat_template{name}", str, "tokenizer.") for name in ("", ".tool_use")
    )
    return template and with_tool_use(template, tool_use)


def _fill_ids(vocabulary: _Vocabulary) -> dict[str, int]:
    """Return the tokens for filling in, where the file names them."""
    token_ids = {ours: vocabulary.id_of(f"fim_{key}") for ours, key in _FILL_KEYS.items()}
    return {ours: token for ours, token in token_ids.items() if token is not None}


class _Pieces(Sequence[bytes | None]):
    """The bytes of each token, worked out where they are asked for: few are, of a large vocabulary."""

    def __init__(self, vocabulary: _Vocabulary, normal_piece: Callable[[str], bytes]) -> None:
        self._tokens, self._normal_piece = vocabulary.tokens, normal_piece
        self._is_unused = vocabulary.types == TokenType.UNUSED
        self._is_normal = np.isin(vocabulary.types, (TokenType.NORMAL, TokenType.BYTE))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: Any) -> Any:
        if self._is_unused[index]:
            return None
        token = self._tokens[index]
        return self._normal_piece(token) if self._is_normal[index] else token.encode()


def _add_special_tokens(encoder: Encoder, vocabulary: _Vocabulary, model_name: str) -> None:
    """Let the encoder find control and user-defined tokens in the text before anything else."""
    # Phi-3 was trained without the spaces after most special tokens; its files do not say so.
    is_phi3 = any(name in model_name.lower() for name in ("phi-3", "phi3"))
    tokens = [
        AddedToken(
            token,
            special=vocabulary.types[i] in _SPECIAL,
            normalized=False,
            rstrip=is_phi3 and token not in _PHI3_KEEPS_SPACE,
        )
        for i, token in vocabulary.of(*_SPECIAL, TokenType.USER_DEFINED).items()
    ]
    encoder.add_tokens(tokens)
