"""From stored weights to the packed ones of a native decoder."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from forerun.core import background, system
from forerun.core.errors import LoadError
from forerun.model.backends.base import BlankWeight, Progress
from forerun.model.config import weight_shapes
from forerun.model.packed.file import PackedFile, PackedWeights
from forerun.weights.rtn import Scheme, quantize_weight, requantize, rounded_format

if TYPE_CHECKING:
    from forerun.weights.stored import StoredTensor

_MOVER = "forerun-weights"


def fill(
    decoder: PackedWeights,
    weights: Iterable[tuple[str, StoredTensor]],
    names: Iterable[str] | None = None,
    *,
    quant: Scheme = "none",
    head_bits: int | None = None,
    packed: PackedFile | None = None,
    progress: Progress | None = None,
) -> None:
    """Give a decoder its weights, as `load` does: those of `names`, by default all of its configuration's.

    Raises LoadError if one is missing or has no kernel.
    """
    missing = dict.fromkeys(weight_shapes(decoder.config) if names is None else names)
    total = len(missing)
    if packed is not None and (digest := packed.load(decoder)):
        decoder.digest = digest
        if not packed.is_mapped and system.HAS_HUGE_PAGES:
            background.start(_MOVER, _Mover(decoder).run)
        if progress is not None:
            progress(total, total)
        return
    packable = _with_biases(weights)
    if head_bits is not None:
        packable = _with_rounded_head(packable, head_bits, "head" not in missing)
    for name, stored, bias in packable:
        rounded = quantize_weight(name, stored, quant)
        decoder.add(name, rounded, bias)
        if rounded.format.is_flat:
            packed = None  # its file cannot store how inputs are split
        stored.release()
        missing.pop(name, None)
        if progress is not None:
            progress(total - len(missing), total)
    if missing:
        raise LoadError(f"weights are missing: {', '.join(missing)}")
    if packed is not None:
        packed.save_meanwhile(decoder)


class _Mover:
    """Moves mapped weights into huge pages beside the first passes, while the decoder and the program live."""

    def __init__(self, decoder: PackedWeights) -> None:
        self._names = [name for name, *_ in decoder.packed()]
        self._decoder = weakref.ref(decoder)
        self.moves = threading.Lock()
        """Held with the decoder, for a weight at a time."""
        _movers.add(self)

    def run(self) -> None:
        for name in self._names:
            with self.moves:
                if not self._move(name):
                    return

    def _move(self, name: str) -> bool:
        decoder = self._decoder()
        if decoder is None or background.is_ending():
            return False
        decoder.move_to_memory(name)
        return True


_movers = weakref.WeakSet[_Mover]()


def wait_for_move() -> None:
    """Wait for the weights that are being moved: their decoders, if nothing else refers to them, are freed then."""
    if background.running(_MOVER):
        for mover in [*_movers]:
            with mover.moves:
                pass


def fill_blank(
    decoder: PackedWeights, weights: Iterable[BlankWeight], head_bits: int | None
) -> None:
    """Give a decoder room for its weights, as `blank` does."""
    for name, shape, form, has_bias in weights:
        kind = form.name if len(shape) > 1 else None
        if head_bits is not None and name == ("embed" if decoder.config.tied_head else "head"):
            decoder.add_blank("head", rounded_format(head_bits).name, shape, has_bias, True)
            if name == "head":
                continue
        decoder.add_blank(name, kind, shape, has_bias, True)


def _with_biases(
    items: Iterable[tuple[str, StoredTensor]],
) -> Iterable[tuple[str, StoredTensor, StoredTensor | None]]:
    pending: tuple[str, StoredTensor] | None = None
    for name, stored in items:
        if pending and name == f"{pending[0]}.bias":
            yield *pending, stored
            pending = None
            continue
        if pending:
            yield *pending, None
        pending = name, stored
    if pending:
        yield *pending, None


def _with_rounded_head(
    items: Iterable[tuple[str, StoredTensor, StoredTensor | None]], bits: int, is_tied: bool
) -> Iterable[tuple[str, StoredTensor, StoredTensor | None]]:
    source = "embed" if is_tied else "head"
    for name, stored, bias in items:
        if name == source:
            yield "head", requantize(stored, bits), bias
            stored.release()
        if name != source or is_tied:
            yield name, stored, bias
