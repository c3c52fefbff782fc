"""A GGUF file is taken for what it is: by its name among others, by its header."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from forerun.core.errors import LoadError
from forerun.hub.hugging_face import HubName, _choose, _without_others
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.gguf_roles import models_among


@pytest.mark.parametrize(
    ("files", "asked", "chosen"),
    [
        (("mmproj-vl-q8_0.gguf", "vl-q8_0.gguf"), "Q8_0", "vl-q8_0.gguf"),
        (("a-mmproj-F16.gguf", "a.imatrix.gguf", "b-F16.gguf"), "F16", "b-F16.gguf"),
        (("eagle3-q-Q4_K_M.gguf", "mtp-q-Q4_K_M.gguf", "q-Q4_K_M.gguf"), "Q4_K_M", "q-Q4_K_M.gguf"),
        (("dflash-m-Q8_0.gguf", "sub/m-Q8_0.gguf"), "Q8_0", "sub/m-Q8_0.gguf"),
        (("eagle3-m-Q8_0.gguf",), "Q8_0", "eagle3-m-Q8_0.gguf"),
        (("Qwen-MTP-Q8_0.gguf", "mmproj-Q8_0.gguf"), "Q8_0", "Qwen-MTP-Q8_0.gguf"),
    ],
)
def test_a_quantization_means_a_model(files: tuple[str, ...], asked: str, chosen: str) -> None:
    assert _choose(HubName("org/m", quantization=asked), [*files]) == chosen


def test_what_goes_with_a_model_can_be_named_by_its_file() -> None:
    files = ["mmproj-vl-Q8_0.gguf", "vl-Q4_0.gguf"]
    assert _choose(HubName("org/m", file=files[0]), files) == files[0]
    with pytest.raises(LoadError, match=r"has no Q8_0, but vl-Q4_0.gguf"):
        _choose(HubName("org/m", quantization="Q8_0"), files)


def written(path: Path, kind: str | None, architecture: str = "llama") -> Path:
    """A GGUF without tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    if kind is not None:
        writer.add_type(kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("kind", "architecture", "what"),
    [
        (gguf.GGUFType.MMPROJ, "clip", "a projector of pictures"),
        (None, "clip", "a projector of pictures"),
        (gguf.GGUFType.ADAPTER, "llama", "an adapter"),
        (gguf.GGUFType.IMATRIX, "llama", "a matrix of importances"),
    ],
)
def test_what_is_no_model_is_told_by_its_header(
    tmp_path: Path, kind: str | None, architecture: str, what: str
) -> None:
    path = written(tmp_path / "a-Q8_0.gguf", kind, architecture)
    with pytest.raises(LoadError, match=f"a-Q8_0.gguf is {what}.*no model"):
        open_checkpoint(path)
    written(tmp_path / "b-Q8_0.gguf", gguf.GGUFType.MODEL)
    assert _without_others(tmp_path, ["a-Q8_0.gguf", "b-Q8_0.gguf"]) == ["b-Q8_0.gguf"]
    with pytest.raises(LoadError, match=r"did you mean .*b-Q8_0.gguf"):
        open_checkpoint(tmp_path)


def test_names_of_models_stay_in_order() -> None:
    assert models_among(["b.gguf", "a.GGUF", "x.txt"]) == ["a.GGUF", "b.gguf"]
