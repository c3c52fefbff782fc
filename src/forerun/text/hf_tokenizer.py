"""The tokenizer of a Hugging Face folder: tokenizer.json and its sibling files, as transformers reads them.

Which tokens there are, which of them end an answer and how a chat is written is spread over tokenizer.json,
tokenizer_config.json, special_tokens_map.json, added_tokens.json, generation_config.json, config.json and
chat_template.jinja. What stands around a text is what post-processing of tokenizer.json puts there: `add_bos_token`
and `add_eos_token` then have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers

from forerun.core.errors import LoadError, short_repr
from forerun.system.opened import read_file, read_json
from forerun.text.added_tokens import add_tokens, settings_path, token_settings
from forerun.text.chat_template import with_tool_use
from forerun.text.ends import end_ids
from forerun.text.fill_in import FillIn
from forerun.text.pieces import byte_level_piece, sentencepiece_piece
from forerun.text.tokenizer import Encoding, Tokenizer, damaged_if_raised

Json = dict[str, Any]
_LARGEST_GAP = 1 << 16
"""Ids that a vocabulary may leave out beyond as many as it has."""


def tokenizer_from_folder(folder: Path, num_rows: int | None = None) -> Tokenizer:
    """Return the tokenizer of a folder, whose model embeds `num_rows` tokens. Raises LoadError that names a file."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise LoadError(
            f"{folder} has no tokenizer.json: save one with transformers' "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    description = read_json(path)
    _check_ids(path, description)
    settings = token_settings(folder)
    with damaged_if_raised(f"{path} cannot be read"):
        encoder = tokenizers.Tokenizer.from_str(read_file(path).decode())
        _forget_training(encoder)
        add_tokens(encoder, folder, settings, num_rows)
    # transformers takes this setting for all texts, chats too.
    encoder.encode_special_tokens = settings.get("split_special_tokens") is True
    return Tokenizer(_encoding(folder, encoder, description, settings))


def _forget_training(encoder: tokenizers.Tokenizer) -> None:
    """Switch off what a training or a calibration has left in the file: texts cut, padded, or cut up at random."""
    encoder.no_truncation()
    encoder.no_padding()
    if isinstance(encoder.model, tokenizers.models.BPE):
        encoder.model.dropout = None


def _check_ids(path: Path, description: Json) -> None:
    """Raise LoadError for an id far beyond the number of tokens, whose table would take memory without end."""
    model = description.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = description.get("added_tokens")
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    if isinstance(added, list):
        ids += [token.get("id") for token in added if isinstance(token, dict)]
    largest = max((i for i in ids if isinstance(i, int)), default=0)
    if largest > 2 * len(ids) + _LARGEST_GAP:
        raise LoadError(f"{path}: a token has the id {largest}, but there are {len(ids)} tokens")


def _encoding(
    folder: Path, encoder: tokenizers.Tokenizer, description: Json, settings: Json
) -> Encoding:
    normal_piece, adds_space = _piece_rule(folder, description)
    added = encoder.get_added_tokens_decoder()
    special = {token.content: i for i, token in added.items() if token.special}
    pieces = _pieces(encoder, normal_piece)
    bos_id, eos_id = (
        _token_id(encoder, settings, key, settings_path(folder, settings, key))
        for key in ("bos_token", "eos_token")
    )
    ends = (eos_id, *(i for i in _named_ends(folder) if 0 <= i < len(pieces)))
    prefix, suffix = _around(encoder)
    fill_in = FillIn.find(encoder.token_to_id)
    return Encoding(
        encoder=encoder,
        pieces=pieces,
        special_ids=frozenset(special.values()),
        eos_ids=end_ids(special.get, ends, fill_in),
        bos_id=bos_id,
        eos_id=eos_id,
        prefix_ids=prefix,
        suffix_ids=suffix,
        adds_space=adds_space,
        chat_template=_chat_template(folder, settings),
        fill_in=fill_in,
    )


def _pieces(
    encoder: tokenizers.Tokenizer, normal_piece: Callable[[str], bytes]
) -> list[bytes | None]:
    vocabulary = encoder.get_vocab(with_added_tokens=True)
    pieces: list[bytes | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for token, i in vocabulary.items():
        pieces[i] = normal_piece(token)
    for i, added in encoder.get_added_tokens_decoder().items():
        # Of bytes' letters, a token that was added stands for what is written; of SentencePiece's, one that is
        # normalized has taken the space before it.
        is_bytes = normal_piece is byte_level_piece
        text = added.content if is_bytes else encoder.id_to_token(i) or ""
        pieces[i] = text.encode() if is_bytes else normal_piece(text)
    return pieces


def _piece_rule(folder: Path, description: Json) -> tuple[Callable[[str], bytes], bool]:
    """Return how tokens are written, and whether encoding puts a space before a text."""
    parts = {part["type"]: part for part in _parts(description.get("decoder"))}
    if "ByteLevel" in parts:
        return byte_level_piece, False
    if "ByteFallback" in parts or "Metaspace" in parts:
        scheme = parts.get("Metaspace", {}).get("prepend_scheme", "never")
        return sentencepiece_piece, "Strip" in parts or scheme != "never"
    raise LoadError(
        f"{folder / 'tokenizer.json'}: its decoder is {', '.join(parts) or 'missing'}, but only "
        "byte-level and SentencePiece tokenizers are supported"
    )


def _parts(decoder: Json | None) -> list[Json]:
    """Return the decoder of tokenizer.json, or the parts of a sequence of them."""
    if decoder is None or decoder["type"] != "Sequence":
        return [] if decoder is None else [decoder]
    return [part for inner in decoder["decoders"] for part in _parts(inner)]


def _around(encoder: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that post-processing puts before and behind a text."""
    plain, whole = (
        encoder.encode("a", add_special_tokens=special).ids for special in (False, True)
    )
    last = len(whole) - len(plain)
    start = next((i for i in range(last) if plain and whole[i : i + len(plain)] == plain), last)
    return tuple(whole[:start]), tuple(whole[start + len(plain) :])


def _named_ends(folder: Path) -> Iterator[int]:
    """Yield the ids that end an answer by the model's settings. Raises LoadError for what is not an id."""
    for path in (folder / "generation_config.json", folder / "config.json"):
        value = read_json(path).get("eos_token_id")
        for i in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(i, int) or isinstance(i, bool):
                raise _wrong(path, "eos_token_id", value, "a token id or a list of them")
            yield i


def _token_id(encoder: tokenizers.Tokenizer, settings: Json, key: str, path: Path) -> int | None:
    """Return the id of a special token, which is written as text or as an object with `content`. Raises LoadError."""
    token = settings.get(key)
    text = token.get("content") if isinstance(token, dict) else token
    if text is None:
        return None
    if not isinstance(text, str):
        raise _wrong(path, key, token, "a token's text or an object with its 'content'")
    return encoder.token_to_id(_unicode(text, path, key))


def _wrong(path: Path, key: str, value: object, allowed: str) -> LoadError:
    return LoadError(f"{path}: '{key}' is {short_repr(value)}, but must be {allowed}")


def _unicode(text: str, path: Path, key: str) -> str:
    """Return the text. Raises LoadError if it holds a lone surrogate, as JSON's escapes may."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _wrong(path, key, text, "valid Unicode") from error
    return text


def _text(path: Path) -> str:
    try:
        return read_file(path).decode()
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} is not text: {error}") from error


def _chat_template(folder: Path, settings: Json) -> str | None:
    """Find the chat template: its own file comes first; of several by name, the default one. Raises LoadError."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        tools = folder / "additional_chat_templates" / "tool_use.jinja"
        return with_tool_use(_text(path), _text(tools) if tools.is_file() else None)
    path, template = folder / "tokenizer_config.json", settings.get("chat_template")
    if not template:
        path = folder / "chat_template.json"
        template = read_json(path).get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict)]
        if not named or any(not {"name", "template"} <= entry.keys() for entry in named):
            raise _wrong(
                path, "chat_template", template, "a text, or a list of 'name' and 'template'"
            )
        sources = {entry["name"]: entry["template"] for entry in named}
        template = sources.get("default")
        if isinstance(template, str) and isinstance(sources.get("tool_use"), str | None):
            template = with_tool_use(template, sources.get("tool_use"))
    if template is not None and not isinstance(template, str):
        raise _wrong(path, "chat_template", template, "a text, or a list of 'name' and 'template'")
    return template and _unicode(template, path, "chat_template")
