"""What of a draft is in memory, and how it leaves and comes back: in a thread of its own, while passes go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from forerun.core.errors import ForerunError
from forerun.drafters.base.draft_head import DraftHead
from forerun.model.cache.base import KVCache
from forerun.model.model import Model
from forerun.system import background

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """A draft in memory."""

    model: Model
    head: DraftHead | None
    cache: KVCache


class Resident:
    """Keeps a draft in memory, or the way to get it there again."""

    def __init__(
        self, make: Callable[[Model], Parts], model: Model, load: Callable[[], Model] | None
    ) -> None:
        """Begin with the loaded model. Without `load` it stays."""
        self._make, self._load = make, load
        self._parts: Parts | None = make(model)
        self._loaded: Parts | None = None
        self._is_loading = False
        self._load_s = 0.0

    @property
    def parts(self) -> Parts:
        """What is in memory, which the draft has to be."""
        assert self._parts is not None
        return self._parts

    @property
    def is_here(self) -> bool:
        """True in memory."""
        return self._parts is not None

    def offload(self) -> bool:
        """Release weights, keys and values; False if they could not be loaded again."""
        if self._load is None:
            return False
        self._parts = None
        return True

    def reload(self) -> float:
        """Begin to load it, or take what was loaded meanwhile; return the seconds that took, 0 before."""
        if self._loaded is not None:
            self._parts, self._loaded, self._is_loading = self._loaded, None, False
            return self._load_s
        if not self._is_loading:
            self._is_loading = True
            background.start("forerun-draft", self._reload)
        return 0.0

    def _reload(self) -> None:
        assert self._load is not None
        begun_s = time.monotonic()
        try:
            parts = self._make(self._load())
        except (ForerunError, OSError, MemoryError) as error:
            _log.warning("the draft model cannot be loaded again: %s; going on without it", error)
            return
        except RuntimeError:
            if background.is_ending():  # which takes the threads that round
                return
            raise
        self._load_s = time.monotonic() - begun_s
        self._loaded = parts  # last: who steps takes it
