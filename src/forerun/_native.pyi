"""Types of the optional native extension; built from csrc/, absent where there was no C++ compiler."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.core.batch import Segment

def argmax_rows(logits: NDArray[np.float32]) -> NDArray[np.int64]: ...
def compiled_isas() -> list[str]: ...
def runnable_isas() -> list[str]: ...

class Cache:
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        num_slots: int,
        max_len: int,
        is_half: bool,
    ) -> None: ...
    def length(self, slot: int) -> int: ...
    def keep(self, slot: int, path: Sequence[int]) -> None: ...
    def truncate(self, slot: int, length: int) -> None: ...
    def copy(self, source: int, target: int, length: int) -> None: ...
    def read(
        self, layer: int, slot: int, k: NDArray[np.float32], v: NDArray[np.float32]
    ) -> None: ...
    def write(
        self, layer: int, slot: int, start: int, k: NDArray[np.float32], v: NDArray[np.float32]
    ) -> None: ...
    def nbytes(self) -> int: ...

class Decoder:
    def __init__(
        self, config: Mapping[str, int | float | bool | str], isa: str, num_threads: int
    ) -> None: ...
    @property
    def isa(self) -> str: ...
    def set_linear(
        self,
        layer: int,
        name: str,
        type: int,
        num_out: int,
        num_in: int,
        rows: NDArray[np.uint8],
        bias: NDArray[np.float32] | None,
    ) -> None: ...
    def packed(
        self, layer: int, name: str
    ) -> tuple[int, int, int, NDArray[np.uint8], NDArray[np.uint8]]: ...
    def add_blank(
        self, layer: int, name: str, kind: int, num_out: int, num_in: int, has_bias: bool
    ) -> None: ...
    def set_norm(
        self,
        layer: int,
        name: str,
        weight: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        eps: float,
        is_layer: bool,
    ) -> None: ...
    def set_rope(self, frequencies: NDArray[np.float32], factor: float) -> None: ...
    def check(self) -> None: ...
    def forward(
        self,
        cache: Cache,
        segments: Sequence[Segment],
        hidden: NDArray[np.float32],
        taps: Sequence[int],
        tapped: NDArray[np.float32],
        sublayers: Sequence[int],
    ) -> None: ...
    def head(self, hidden: NDArray[np.float32], logits: NDArray[np.float32]) -> None: ...
    def argmax(self, hidden: NDArray[np.float32], ids: NDArray[np.int64]) -> None: ...
    def unpack(self, layer: int, name: str, out: NDArray[np.float32]) -> None: ...
    def apply(
        self, layer: int, name: str, x: NDArray[np.float32], out: NDArray[np.float32]
    ) -> None: ...
    def nbytes(self) -> int: ...
