"""Networks that draft, as other engines read them: what is the target's becomes rows of their own, in fp16.

What the other engines have no place for is left out: the calibration, the target's name. All heads but EAGLE-3's have
all tokens. `kinds/` has the layouts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forerun.drafting.base import Target
from forerun.drafting.networks import folder as network_folder
from forerun.drafting.networks.folder import is_float
from forerun.lab.train.learners import KINDS, kind_module


def export(folder: Path, out: Path, target: Target) -> None:
    """Write a folder for other engines. Raises LoadError for one that does not fit the target, and OSError."""
    kind = network_folder.config_of(folder).get("model_type")
    module = kind_module(str(kind) if kind in KINDS else "eagle3")
    config, tensors = module.exported(folder, target)
    halves = {n: t.astype(np.float16) if is_float(t) else t for n, t in tensors.items()}
    network_folder.write(out, config | {"torch_dtype": "float16"}, halves)
