"""Runs in a peer's environment: makes the peer's own format of a GGUF file.

Started as a script: `_convert.py ADAPTER GGUF TARGET`. TARGET appears last and whole; what an interruption leaves is
`TARGET.partial`, which the next attempt clears. An adapter that asks for it gets a Hugging Face folder: the weights of
the file, dequantized to fp16.
"""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path


def checkpoint(gguf: Path, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file as a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": gguf.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.float16, quantization_config=GgufConfig(dequantize=True), **source
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(folder)


def convert(adapter: str, gguf: Path, target: Path) -> None:
    """Let the adapter convert."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)

    def folder() -> str:
        checkpoint(gguf, partial / "checkpoint")
        return str(partial / "checkpoint")

    runpy.run_path(adapter)["convert"](str(gguf), folder, str(partial / "converted"))
    (partial / "converted").rename(target)
    shutil.rmtree(partial)


if __name__ == "__main__":
    convert(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
