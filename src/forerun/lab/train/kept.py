"""What a trained network is known by, for those who find it without training: nothing here imports torch."""

from __future__ import annotations

FOUND_KIND = "mlp_speculator"
"""Of the networks that come with the package, and that `forerun tune` makes."""
RECORD = "train.json"
"""The file that says how a network was trained."""
