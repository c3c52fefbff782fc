"""llama.cpp's vocabulary files (`models/ggml-vocab-*.gguf` of its source): its texts' token ids against ours.

    python -m dev.suites.vocabularies FOLDER

FOLDER is `models` of a llama.cpp checkout or of llama-cpp-python's sdist. A file `X.gguf` has texts in `X.gguf.inp` and
their ids in `X.gguf.out`; one without these is only loaded.
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

from forerun.core.errors import LoadError
from forerun.text.gguf_tokenizer import tokenizer_from_gguf
from forerun.weights.gguf_header import read_header

SEPARATOR = "\n__ggml_vocab_test__\n"


def compare(path: Path) -> str:
    """Return what became of one file, in a line."""
    try:
        with path.open("rb") as file:
            header = read_header(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        tokenizer = tokenizer_from_gguf(header.metadata)
    except LoadError as error:
        return f"refused: {error}"[:120]
    texts_file, ids_file = Path(f"{path}.inp"), Path(f"{path}.out")
    if not texts_file.is_file():
        return "loaded"
    texts = texts_file.read_text(encoding="utf-8").split(SEPARATOR)
    lines = ids_file.read_text(encoding="utf-8").splitlines()
    pairs = [(text, [*map(int, line.split())]) for text, line in zip(texts, lines)]
    wrong = [text for text, ids in pairs if tokenizer.encode(text, special=False, bos=False) != ids]
    return f"{len(pairs) - len(wrong)} of {len(pairs)}" + (f", not {wrong[:2]}" if wrong else "")


if __name__ == "__main__":
    for file in sorted(Path(sys.argv[1]).glob("ggml-vocab-*.gguf")):
        print(f"{file.stem.removeprefix('ggml-vocab-')}: {compare(file)}")
