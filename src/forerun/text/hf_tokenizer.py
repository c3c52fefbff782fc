"""The tokenizer of a Hugging Face folder: tokenizer.json and its sibling files.

Whether a model wants a BOS token, which tokens end an answer and how a chat is written is spread
over tokenizer_config.json, special_tokens_map.json, generation_config.json, config.json and
chat_template.jinja.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers

from forerun.core.errors import LoadError
from forerun.core.opened import OpenedFile, open_noted
from forerun.text.pieces import byte_level_piece, end_ids, sentencepiece_piece
from forerun.text.tokenizer import Encoding, Tokenizer

Json = dict[str, Any]


def read_json(path: Path, opened: list[OpenedFile] | None = None) -> Json:
    """Return a JSON object from a file, empty if there is no file. Raises LoadError if it is not one.

    The file is added to those that were `opened`.
    """
    try:
        with open_noted(path, [] if opened is None else opened) as file:
            value = json.loads(file.read().decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} is no JSON file: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path} is no JSON object, but a {type(value).__name__}")
    return value


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder. Raises LoadError that names the file in question."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise LoadError(
            f"{folder} has no tokenizer.json: save one with transformers' "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        text = path.read_text(encoding="utf-8")
        encoder = tokenizers.Tokenizer.from_str(text)
    # The tokenizers library raises bare exceptions.
    except Exception as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    return Tokenizer(_encoding(folder, encoder, read_json(path)))


def _encoding(folder: Path, encoder: tokenizers.Tokenizer, description: Json) -> Encoding:
    settings = read_json(folder / "special_tokens_map.json") | read_json(
        folder / "tokenizer_config.json"
    )
    normal_piece, adds_space = _piece_rule(folder, description)
    added = encoder.get_added_tokens_decoder()
    special = {i: token.content for i, token in added.items() if token.special}
    bos_id, eos_id = (_token_id(encoder, settings.get(f"{key}_token")) for key in ("bos", "eos"))
    return Encoding(
        encoder=encoder,
        pieces=_pieces(encoder, normal_piece),
        special_ids=frozenset(special),
        eos_ids=end_ids(special, (eos_id, *_named_ends(folder))),
        bos_id=bos_id,
        eos_id=eos_id,
        adds_bos=bos_id is not None and _adds_bos(encoder, settings, bos_id),
        adds_space=adds_space,
        chat_template=_chat_template(folder, settings),
    )


def _pieces(
    encoder: tokenizers.Tokenizer, normal_piece: Callable[[str], bytes]
) -> list[bytes | None]:
    vocabulary = encoder.get_vocab(with_added_tokens=True)
    pieces: list[bytes | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for token, i in vocabulary.items():
        pieces[i] = normal_piece(token)
    for i, added in encoder.get_added_tokens_decoder().items():
        pieces[i] = added.content.encode()
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


def _adds_bos(encoder: tokenizers.Tokenizer, settings: Json, bos_id: int) -> bool:
    """Return whether BOS is added: by the settings, else by the tokenizer's own post-processing."""
    adds_bos = settings.get("add_bos_token")
    if isinstance(adds_bos, bool):
        return adds_bos
    return list(encoder.encode("", add_special_tokens=True).ids[:1]) == [bos_id]


def _named_ends(folder: Path) -> Iterator[int]:
    for name in ("generation_config.json", "config.json"):
        eos_ids = read_json(folder / name).get("eos_token_id")
        yield from (
            i for i in (eos_ids if isinstance(eos_ids, list) else [eos_ids]) if isinstance(i, int)
        )


def _token_id(encoder: tokenizers.Tokenizer, token: str | Json | None) -> int | None:
    """Return the id of a special token, which is written as text or as an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return None if text is None else encoder.token_to_id(text)


def _chat_template(folder: Path, settings: Json) -> str | None:
    """Find the chat template: its own file comes first; of several by name, the default one."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template") or read_json(folder / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template
