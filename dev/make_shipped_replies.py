"""The replies that come with the package, from a store of `forerun train data`: texts of answers, without the prompts.

    python -m dev.make_shipped_replies benchmarks/replies/qwen2.5-coder-1.5b.jsonl.gz qwen2.5-coder-1.5b.gguf OUT.txt.gz

Left out is what training leaves out: loops, doubles, answers of a few tokens; and of those to questions about code,
which resemble each other, two of three: they would be half of the file.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

from forerun.drafters.base.vocabulary import fingerprint
from forerun.hub.names import name_of
from forerun.lab.train.answers import open_store
from forerun.lab.train.replies import of_store
from forerun.weights.checkpoint import open_checkpoint

CODE, CODE_PART = ("codegen", "coding"), 3
"""Domains of which one reply in so many is kept."""


def main(store: Path, model: Path, out: Path) -> None:
    """Write the answers, which the model's tokenizer reads, with a NUL between two."""
    tokenizer = open_checkpoint(model).tokenizer()
    with TemporaryDirectory() as folder:
        unpacked = Path(folder) / "answers.jsonl"
        unpacked.write_bytes(gzip.decompress(store.read_bytes()))
        found = of_store(open_store(name_of(model), fingerprint(tokenizer), unpacked))
    replies = [
        reply
        for reply in found
        if reply.domain not in CODE or not zlib.crc32(reply.key.encode()) % CODE_PART
    ]
    texts = [tokenizer.decode(reply.tokens[reply.first :]) for reply in replies]
    packed = gzip.compress("\0".join(texts).encode(), 9, mtime=0)
    out.write_bytes(packed)
    num_tokens = sum(reply.num_learned for reply in replies)
    print(f"{len(texts)} replies, {num_tokens} tokens, {len(packed)} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
