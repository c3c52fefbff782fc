"""Types of the optional native extension; built from csrc/, absent where there was no C++ compiler."""

import numpy as np
from numpy.typing import NDArray

def argmax_rows(logits: NDArray[np.float32]) -> NDArray[np.int64]: ...
