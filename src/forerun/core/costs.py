"""How fast what is learned while requests run is forgotten, and how much counts what is said beforehand."""

from __future__ import annotations

DECAY = 0.98
"""What a case counts for after the next one (kDecay in C++)."""
PRIOR_WEIGHT = 4.0
"""Cases that what is said beforehand weighs as much as (kPriorWeight in C++)."""
