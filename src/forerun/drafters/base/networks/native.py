"""Networks that draft on the native kernels, or on the device of their target: how weights get there, one call a draft.

V' tokens of the head, D width of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.errors import LoadError
from forerun.core.types import Seq
from forerun.drafters.base.contract import DrafterBytes
from forerun.drafters.base.networks.network import LastStateNetwork
from forerun.drafters.base.networks.options import NetworkOptions
from forerun.drafters.base.networks.trained import TrainedNetwork
from forerun.model.backends import triton
from forerun.model.backends.native import NativeDecoder
from forerun.model.kernels import native
from forerun.model.model import Model
from forerun.weights.codes import Bytes
from forerun.weights.rtn import HEAD_BITS, requantize
from forerun.weights.stored import StoredTensor, stored_floats

if TYPE_CHECKING:
    from forerun import _native
    from forerun._native import Partner

Kernels = TypeVar("Kernels", bound="_native.DraftNetwork")


class NativeNetwork(LastStateNetwork, Generic[Kernels]):
    """Drafts with the target's threads, its embedding and a copy of the rows of its head: one call a draft.

    It starts from the target's last state. Where the target is on a device, its rows are computed there.
    Raises LoadError naming the weight that is wrong, or for a target on neither.
    """

    def __init__(
        self,
        options: NetworkOptions,
        model: Model,
        new_kernels: Callable[[NativeDecoder], Kernels],
        trained: TrainedNetwork[Any],
        eps: float,
        on_device: tuple[Any, ...],
    ) -> None:
        """Make the kernels beside the target, and hand them the weights: the target's head if there is none.

        `on_device` has the kind and shape of those for a target on a device, as `triton.draft_network` takes them.
        Matrices are rounded to the options' bits: groups of 4 or 8 where their width has them, 16, or 32, which rounds
        nothing. `eps` is what norms add.
        """
        self.on_device: Any = triton.draft_network(model, *on_device)
        """The kernels, where the target is on a device."""
        super().__init__(options)
        self.width = model.config.hidden_size
        takes_head = "head.0" not in trained.tensors
        divisor = model.config.logits_divisor if takes_head else 1.0
        try:
            kernels: Kernels = self.on_device
            if kernels is None:
                kernels = new_kernels(_native_decoder(model))
            self.native = kernels
            if trained.tokens is not None:
                kernels.set_tokens(trained.tokens.tolist())
            _set_weights(kernels, trained, options.bits, eps)
            if takes_head:
                kernels.take_head()
            kernels.set_temperatures([divisor * each for each in trained.temperatures])
            kernels.check()
        except ValueError as error:  # what the kernels refuse, naming the weight
            raise LoadError(str(error)) from error

    def memory(self, num_seqs: int, max_len: int) -> DrafterBytes:
        """Count the packed weights, and a state a sequence."""
        return DrafterBytes(self.native.nbytes(), tables=4 * num_seqs * self.width)

    def partner(
        self,
        seqs: Sequence[Seq],
        num_nodes: list[int],
        num_steps: Sequence[int],
        min_doubt: float,
    ) -> Partner:
        """Begin drafts from each sequence's state; one sequence's is not copied."""
        states, row = self.states[seqs[0].id]
        if len(seqs) == 1:
            return self.asked(num_steps, min_doubt, [row], states)
        return self.asked(
            num_steps, min_doubt, None, np.stack([self.state_of(seq) for seq in seqs])
        )

    def asked(
        self,
        num_steps: Sequence[int],
        min_doubt: float = 0.0,
        rows: Sequence[int] | None = None,
        states: Floats | None = None,
    ) -> Partner:
        """Begin drafts from rows of `states` (R, D), or from those slots of its own cache; None: 0, 1, ..."""
        from forerun import _native

        asked = partial(_native.Partner, num_steps=num_steps, min_doubt=min_doubt, share=self.share)
        if self.on_device is not None:
            return asked(self.on_device.begin_draft(num_steps, rows, states))
        return asked(self.native, rows=rows, states=states)


def runs_networks(model: Model) -> bool:
    """Tell whether networks can draft for a model: on its threads, or on its device."""
    return isinstance(model, NativeDecoder) or triton.device_of(model) is not None


def _native_decoder(model: Model) -> NativeDecoder:
    """Return the model, whose embedding, head and threads a network uses. Raises LoadError for another."""
    if not isinstance(model, NativeDecoder):
        native.require()
        raise LoadError(
            "a drafter with a trained network runs on the native kernels, and this model does not: "
            "take -d recycling"
        )
    return model


def _set_weights(
    kernels: _native.DraftNetwork, trained: TrainedNetwork[Any], bits: int, eps: float
) -> None:
    """Hand over the tensors, each read from its file and rounded before the next. Raises LoadError, ValueError."""
    for name, stored in trained.tensors.items():
        if name.endswith(".bias"):
            continue
        values = _finite(stored)
        if values.ndim == 2:
            kernels.set(name, *_rounded(name, values, bits))
        else:
            bias = trained.tensors.get(f"{name}.bias")
            kernels.set_norm(name, values, None if bias is None else _finite(bias), eps)


def _finite(stored: StoredTensor) -> Floats:
    values = stored.dequantize()
    if not bool(np.isfinite(values).all()):
        raise LoadError(f"tensor '{stored.name}' holds values that are not finite")
    return values


def _rounded(name: str, values: Floats, bits: int) -> tuple[str, int, Bytes]:
    """Return a matrix as the kernels take it: its format, its width and its rows of blocks (N, bytes a row)."""
    num_rows, width = values.shape
    if bits in HEAD_BITS and width % 32 == 0:
        stored = requantize(stored_floats(name, values), bits)
        return stored.format.name, width, np.ascontiguousarray(stored.data)
    if bits == 16:
        rows = np.ascontiguousarray(values.astype(np.float16)).view(np.uint8)
        return "f16", width, rows.reshape(num_rows, -1)
    return "f32", width, np.ascontiguousarray(values).view(np.uint8).reshape(num_rows, -1)
