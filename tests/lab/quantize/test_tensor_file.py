"""Files written row by row are those that the safetensors package reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.lab.quantize import tensor_file
from forerun.lab.quantize.tensor_file import Chunks

DTYPES = (np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8)


@settings(max_examples=8)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=9),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
        max_size=5,
    ),
    st.integers(0, 99),
)
def test_the_package_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, tuple[type, list[int]]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("f") / "x.safetensors"
    arrays = {n: random.integers(0, 99, s).astype(d) for n, (d, s) in shapes.items()}
    tensor_file.write(path, arrays, {"known": "é"})
    read = safetensors.numpy.load_file(path)
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt", "known": "é"}


def test_rows_are_made_while_the_file_is_written(tmp_path: Path) -> None:
    whole = np.arange(35, dtype=np.float16).reshape(7, 5)
    rows = (whole[i : i + 3] for i in range(0, 7, 3))
    path = tmp_path / "x.safetensors"
    parts = {"a": Chunks((7, 5), whole.dtype, rows), "b": np.ones(3, np.float32).T}
    tensor_file.write(path, parts)
    read = safetensors.numpy.load_file(path)
    np.testing.assert_array_equal(read["a"], whole)
    np.testing.assert_array_equal(read["b"], np.ones(3, np.float32))


def test_what_fails_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"before")

    def failing():
        yield np.zeros((1, 2), np.float32)
        raise ValueError("no second row")

    with pytest.raises(ValueError, match="no second row"):
        tensor_file.write(path, {"a": Chunks((2, 2), np.dtype(np.float32), failing())})
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
