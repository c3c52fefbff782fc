"""One quantized linear layer of a Hugging Face folder: its tensors, and the checks that they fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from forerun.core.errors import LoadError, short_repr
from forerun.weights.codes import FORMATS, Bytes, Codes
from forerun.weights.int_words import Words
from forerun.weights.stored import StoredTensor

Tensors = Mapping[str, StoredTensor]
Config = Mapping[str, object]


@dataclass
class PackedLayer:
    """The tensors of one linear layer of an open folder, and the checks that they fit each other."""

    name: str
    config: Config
    tensors: Tensors
    separator: str = "."
    """What stands between its name and that of a part."""
    used: list[str] = field(default_factory=list)

    def words(self, part: str) -> Words:
        """Return an int32 tensor. Raises LoadError."""
        return self._data(part, "I32").view(np.int32)

    def floats(self, part: str) -> np.ndarray:
        """Read scales as fp32. Raises LoadError for another type."""
        tensor = self.tensor(part)
        if tensor.format.name not in ("f16", "bf16", "f32"):
            raise LoadError(f"tensor '{tensor.name}' is {tensor.format.name}, not floating-point")
        return tensor.dequantize()

    def bytes(self, part: str, dtype: str = "I8") -> Bytes:
        """Return a tensor of int8 or another type of a byte, as bytes. Raises LoadError."""
        return self._data(part, dtype)

    def has(self, part: str) -> bool:
        """Return whether the layer has such a tensor."""
        return self.name_of(part) in self.tensors

    def name_of(self, part: str) -> str:
        """Return what one of its tensors is called."""
        return f"{self.name}{self.separator}{part}"

    def matrix(self, part: str) -> tuple[int, int]:
        """Return the shape of a matrix. Raises LoadError for other tensors, such as experts in one."""
        shape = self.tensor(part).shape
        if len(shape) != 2:
            raise LoadError(
                f"tensor '{self.name_of(part)}' is {shape}, but is read as a matrix: take the model as a GGUF, "
                "or a folder with a tensor for each expert"
            )
        return shape[0], shape[1]

    def need(self, part: str, expected: tuple[int, ...], why: str = "") -> None:
        """Raise LoadError if a tensor has another shape."""
        shape = self.tensor(part).shape
        if shape != expected:
            raise LoadError(
                f"tensor '{self.name_of(part)}' should be {expected}, but is {shape}{why}"
            )

    def group(self, key: str, given: object, num_in: int) -> int:
        """Return the columns of a group: -1 or null is a whole row. Raises LoadError if they do not divide the row."""
        size = num_in if given in (None, -1) else given
        if not isinstance(size, int) or isinstance(size, bool) or size < 1 or num_in % size:
            raise LoadError(
                f"'{key}' is {short_repr(given)}, but '{self.name}' has {num_in} inputs, which it does not divide"
            )
        if size % 32:
            raise LoadError(f"'{key}' is {size}: groups of '{self.name}' must be multiples of 32")
        return size

    def weight(
        self,
        part: str,
        shape: tuple[int, int],
        bits: int,
        read: Callable[[], Codes],
        *,
        is_symmetric: bool = False,
        has_order: bool = False,
    ) -> StoredTensor:
        """Return the layer's weight in the format that holds its codes exactly.

        Columns in another order stay codes where a row is gathered in that order before it is read: not of experts,
        nor of the embedding and the head, which become fp16. `read` gives unsigned codes with zero points.
        """
        name, middle = f"{self.name}.weight", 1 << (bits - 1)
        grid = {8: "q8_0", 4: "q4_0"}.get(bits, "q4_z") if is_symmetric else "q4_z"
        if bits == 8 and not is_symmetric:
            grid = "q8_z"
        is_gathered = ".layers." in name and ".experts." not in name
        format = FORMATS["f16" if has_order and not is_gathered else grid]

        def codes() -> Codes:
            codes = read()
            if grid == "q4_z":
                return codes
            signed = (codes.codes - np.uint8(middle)).view(np.int8)
            zeros = None
            if grid == "q8_z" and codes.zeros is not None:
                zeros = codes.zeros - np.float32(middle)
            return replace(codes, codes=signed, zeros=zeros)

        return StoredTensor(name, shape, format, self.tensor(part).data, codes)

    def order(self, part: str, num_in: int, group: int) -> np.ndarray | None:
        """Return the group of each column, None if they are in order. Raises LoadError."""
        if not self.has(part):
            return None
        self.need(part, (num_in,))
        order = self.words(part).reshape(-1)
        if (order == np.arange(num_in) // group).all():
            return None
        if order.min() < 0 or order.max() >= num_in // group:
            raise LoadError(f"tensor '{self.name_of(part)}' names groups beyond {num_in // group}")
        if (np.bincount(order, minlength=num_in // group) != group).any():
            raise LoadError(f"tensor '{self.name_of(part)}' names not every group {group} times")
        return order

    def _data(self, part: str, dtype: str) -> Bytes:
        tensor = self.tensor(part)
        if tensor.format.name != dtype:
            raise LoadError(f"tensor '{tensor.name}' is {tensor.format.name}, but must be {dtype}")
        return tensor.data

    def tensor(self, part: str) -> StoredTensor:
        """Return one of its tensors as stored. Raises LoadError."""
        name = self.name_of(part)
        if name not in self.tensors:
            raise LoadError(f"the checkpoint has no tensor '{name}'")
        if name not in self.used:
            self.used.append(name)
        return self.tensors[name]


def integer(config: Config, key: str, allowed: tuple[int, ...]) -> int:
    """Return a number of the quantization config. Raises LoadError."""
    value = config.get(key)
    if value not in allowed or isinstance(value, bool):
        raise LoadError(
            f"'{key}' of the quantization config is {short_repr(value)}, but must be {' or '.join(map(str, allowed))}"
        )
    assert isinstance(value, int)
    return value
