"""Types of the arrays that rooms hand each other: NumPy's, in the process's own memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
"""Hidden states, logits, weights: fp32."""
Ids = NDArray[np.int64]
"""Token ids."""
