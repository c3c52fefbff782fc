"""The native extension: its one op against numpy and torch, its refusals, and life without it."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forerun.core import device
from forerun.kernels import native

needs_native = pytest.mark.skipif(not native.available(), reason=native.summary())

# Few distinct values, so that most rows have ties; NaN and infinities on purpose.
values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan])
matrices = hnp.arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 40)), elements=values)


@needs_native
@given(matrices)
def test_argmax_rows_equals_numpy_and_torch(logits: np.ndarray) -> None:
    ids = native.argmax_rows(torch.from_numpy(logits))
    assert ids.dtype == torch.int64
    assert ids.tolist() == np.argmax(logits, axis=1).tolist()
    assert ids.tolist() == torch.argmax(torch.from_numpy(logits), dim=1).tolist()


@needs_native
def test_argmax_rows_takes_the_lowest_of_equal_ids() -> None:
    assert native.argmax_rows(torch.zeros(3, 49152)).tolist() == [0, 0, 0]


@needs_native
def test_the_result_owns_its_memory() -> None:
    ids = [native.argmax_rows(torch.eye(64)) for _ in range(50)]
    assert all(row.tolist() == list(range(64)) for row in ids)


@needs_native
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), "float32"),
        (torch.zeros(2, 3, dtype=torch.int32), "float32"),
        (torch.zeros(3), "2 dimensions"),
        (torch.zeros(1, 2, 3), "2 dimensions"),
        (torch.zeros(2, 0), "no largest"),
        (torch.zeros(3, 2).T, "contiguous"),
        (torch.zeros(2, 8)[:, ::2], "contiguous"),
    ],
    ids=lambda case: case if isinstance(case, str) else str(tuple(case.shape)),
)
def test_argmax_rows_refuses_what_it_cannot_read(logits: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native.argmax_rows(logits)


def test_without_the_extension_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert not native.available()
    assert "not built" in (native.reason() or "")
    assert "install a C++20 compiler" in native.summary()


def test_an_extension_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("GLIBCXX_3.4.32 not found")

    monkeypatch.setattr(importlib, "import_module", broken)
    assert "GLIBCXX_3.4.32 not found" in (device.native_problem() or "")
