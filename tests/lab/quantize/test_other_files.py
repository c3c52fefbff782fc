"""What `quantize` writes beside the weights means for transformers what the source means for us."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import json
from pathlib import Path

from transformers import AutoTokenizer

from forerun.core.errors import LoadError
from forerun.lab.quantize.hf_export import write_other_files
from forerun.text.tokenizer import Tokenizer
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.hf import tokenizer_from_folder
from tests.weights.files import matrix, write_gguf
from tests.weights.folder_keys import KEPT
from tests.weights.test_hf import byte_level_encoder, write_folder


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_tokenizer_of_a_gguf_is_written_with_its_bos(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"w": matrix(2, 2)}, tokenizer=kind)
    source = open_checkpoint(path)
    (folder := tmp_path / "out").mkdir()
    write_other_files(source, folder)
    ours, theirs = source.tokenizer(), AutoTokenizer.from_pretrained(str(folder))
    again: Tokenizer = tokenizer_from_folder(folder)
    for text in ("hello wo 12", "", "  he</s>é\n"):
        ids = ours.encode(text)
        assert theirs.encode(text) == again.encode(text) == ids
    assert bool(ours.encode("")) is (kind == "llama")


def test_the_files_of_a_folder_are_kept_as_the_table_says(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    for name in KEPT:
        if not (folder / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("{}")
    byte_level_encoder().save(str(folder / "tokenizer.json"))
    with pytest.raises(LoadError, match="adapter"):
        open_checkpoint(folder)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).unlink()
    source = open_checkpoint(folder)
    (folder / "adapter_config.json").write_text(json.dumps({}))
    (out := tmp_path / "out").mkdir()
    write_other_files(source, out)
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert written == {name for name, what in KEPT.items() if what == "copied"}
