"""The tokens of a Hugging Face folder beyond its vocabulary: the union of the files that transformers reads.

Today's folders list them in `added_tokens_decoder` of tokenizer_config.json, older ones in added_tokens.json and
special_tokens_map.json; all have those of tokenizer.json, and the special tokens that tokenizer_config.json names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Encoder

from forerun.core.errors import LoadError, short_repr
from forerun.system.opened import read_json

Json = Mapping[str, Any]
_LISTS = ("extra_special_tokens", "additional_special_tokens")
"""Keys of special tokens without a role; the second is the older name."""
_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_TOKEN = "a token's text or an object with its 'content'"


def token_settings(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json; special_tokens_map.json goes before it in folders that list no added tokens.

    Raises LoadError.
    """
    settings = read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" in settings:
        return settings
    older = read_json(folder / "special_tokens_map.json")
    extra = [*_listed(settings, folder), *_listed(older, folder)]
    return settings | older | ({_LISTS[0]: extra} if extra else {})


def settings_path(folder: Path, settings: Json, key: str) -> Path:
    """Return the file that a key of `token_settings` comes from, for messages."""
    older = folder / "special_tokens_map.json"
    is_older = "added_tokens_decoder" not in settings and key in read_json(older)
    return older if is_older else folder / "tokenizer_config.json"


def add_tokens(encoder: Encoder, folder: Path, settings: Json, num_rows: int | None) -> None:
    """Add to an encoder the tokens that the folder's other files list or name, with their flags. Raises LoadError.

    A special token that is merely named, and has no row among the embedding's `num_rows`, is none: the model has not
    seen it.
    """
    named = [*_named(settings, folder)]
    roles = {token.content for role, token in named if role}
    has_list = "added_tokens_decoder" in settings
    listed = [*(_listed_tokens if has_list else _older_tokens)(encoder, folder, settings)]
    for token in listed:
        token.special = token.special or token.content in roles
    encoder.add_tokens(listed)
    known = {token.content for token in encoder.get_added_tokens_decoder().values()}
    for _, token in named:
        is_new = encoder.token_to_id(token.content) is None
        has_row = num_rows is None or encoder.get_vocab_size() < num_rows
        if token.content not in known and (has_row or not is_new):
            encoder.add_tokens([token])


def _listed_tokens(_: Encoder, folder: Path, settings: Json) -> Iterator[AddedToken]:
    """Yield the tokens of `added_tokens_decoder`, in the order of their ids."""
    path, key = folder / "tokenizer_config.json", "added_tokens_decoder"
    listed = settings[key]
    if not isinstance(listed, dict) or not all(i.isascii() and i.isdigit() for i in listed):
        raise _wrong(path, key, listed, "an object of tokens by id")
    for _, token in sorted(listed.items(), key=lambda entry: (len(entry[0]), entry[0])):
        if not isinstance(token, dict):
            raise _wrong(path, key, token, "an object with the token's 'content'")
        yield _token(token, path, key)


def _older_tokens(encoder: Encoder, folder: Path, settings: Json) -> Iterator[AddedToken]:
    """Yield the tokens of added_tokens.json, special if they are named, then those that the encoder has."""
    path = folder / "added_tokens.json"
    ids = read_json(path)
    if not all(isinstance(i, int) for i in ids.values()):
        raise LoadError(f"{path} must be an object of token ids, and is not")
    special = {token.content for _, token in _named(settings, folder)}
    added = encoder.get_added_tokens_decoder()
    for text in sorted(ids, key=ids.__getitem__):
        _check_text(text, path, "a token")
        if ids[text] not in added:
            yield AddedToken(text, normalized=text not in special, special=text in special)
    yield from added.values()


def _named(settings: Json, folder: Path) -> Iterator[tuple[str, AddedToken]]:
    """Yield the special tokens that the settings name: a role (`bos_token`, `image_token`) or "", and the token.

    New tokens get their ids in this order.
    """
    roles = [key for key in settings if key.endswith("_token") and key not in _ROLES]
    for key in (*_ROLES, *sorted(roles, key=lambda key: isinstance(settings[key], str))):
        if isinstance(value := settings.get(key), str | dict):
            yield key, _token(value, settings_path(folder, settings, key), key, is_special=True)
    for value in _listed(settings, folder):
        path = settings_path(folder, settings, _LISTS[0])
        yield "", _token(value, path, _LISTS[0], is_special=True)


def _listed(settings: Json, folder: Path) -> list[Any]:
    """Return the special tokens without a role, which newer files may give names of their own."""
    found: Any = next((settings[key] for key in _LISTS if settings.get(key)), [])
    values = [*found.values()] if isinstance(found, dict) else found
    if not isinstance(values, list) or not all(isinstance(v, str | dict) for v in values):
        raise _wrong(folder / "tokenizer_config.json", _LISTS[0], found, "a list of tokens")
    return values


def _token(value: str | Json, path: Path, key: str, is_special: bool = False) -> AddedToken:
    """Return a token that is written as text, or as an object with its flags. Raises LoadError."""
    if isinstance(value, str):
        _check_text(value, path, key)
        return AddedToken(value, special=True)
    text = value.get("content")
    if not isinstance(text, str):
        raise _wrong(path, key, value, _TOKEN)
    _check_text(text, path, key)
    flags = {flag: value[flag] for flag in _FLAGS if isinstance(value.get(flag), bool)}
    return AddedToken(text, **flags | ({"special": True} if is_special else {}))


def _check_text(text: str, path: Path, key: str) -> None:
    """Raise LoadError for a lone surrogate, as JSON's escapes may make one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _wrong(path, key, text, "valid Unicode") from error


def _wrong(path: Path, key: str, value: object, allowed: str) -> LoadError:
    return LoadError(f"{path}: '{key}' is {short_repr(value)}, but must be {allowed}")
