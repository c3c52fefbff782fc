"""Small model files for the tests, written with the reference writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from forerun.text.gguf_tokenizer import TokenType

BYTE_CHARACTERS = [
    chr(byte) if 33 <= byte < 127 or (161 <= byte < 256 and byte != 173) else None
    for byte in range(256)
]


def byte_alphabet() -> list[str]:
    """GPT-2's 256 characters in the order of the bytes, worked out apart from the code under test."""
    spare = iter(range(256, 512))
    return [character or chr(next(spare)) for character in BYTE_CHARACTERS]


def byte_level_vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, types and merges of a small byte-level BPE: 256 bytes, a few words, an end token, padding."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "1 2"]
    words = [merge.replace(" ", "") for merge in merges]
    special = ["<|endoftext|>", "<|im_end|>", "<tool>", "[PAD260]"]
    types = [TokenType.NORMAL] * (256 + len(words))
    types += [TokenType.CONTROL, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNUSED]
    return byte_alphabet() + words + special, [int(kind) for kind in types], merges


def sentencepiece_vocabulary() -> tuple[list[str], list[int], list[float]]:
    """Tokens, types and scores of a small SentencePiece BPE with byte fallback."""
    special = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    byte_tokens = {f"<0x{byte:02X}>": TokenType.BYTE for byte in range(256)}
    words = ["he", "ll", "hell", "hello", "▁w", "▁wo", "▁hello", "▁▁"]
    letters = sorted(set("".join(words)))
    normal = dict.fromkeys([*words, *letters], TokenType.NORMAL)
    vocabulary = special | byte_tokens | normal
    scores = [0.0] * (len(special) + len(byte_tokens)) + [-float(i) for i in range(len(normal))]
    return list(vocabulary), [int(kind) for kind in vocabulary.values()], scores


def write_gguf(
    path: Path,
    tensors: Mapping[str, NDArray[np.float32]] | None = None,
    *,
    dtype: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    tokenizer: str | None = None,
    pre: str | None = "smollm",
    chat_template: str | None = None,
    strings: Mapping[str, str] | None = None,
) -> Path:
    """A GGUF with these tensors, stored as `dtype`, and a `gpt2` or `llama` tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(10000.0)
    for key, value in (strings or {}).items():
        writer.add_string(key, value)
    if tokenizer is not None:
        _add_tokenizer(writer, tokenizer, pre)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, gguf.quantize(values, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, model: str, pre: str | None) -> None:
    writer.add_tokenizer_model(model)
    if model == "llama":
        tokens, types, scores = sentencepiece_vocabulary()
        writer.add_token_scores(scores)
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
    else:
        tokens, types, merges = byte_level_vocabulary()
        writer.add_token_merges(merges)
        writer.add_eos_token_id(tokens.index("<|endoftext|>"))
        if pre is not None:
            writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)


def matrix(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normal numbers, the same for the same arguments."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def texts() -> Sequence[str]:
    """Texts that tokenizers find hard."""
    return (
        "hello world",
        "  hello\n\n\tworld  ",
        "héllo wörld 12345",
        "日本語 العربية ไทย 🙂👩‍👩‍👧",
        "hello<|im_end|>hello",
        "",
    )
