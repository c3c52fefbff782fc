"""When drafting is faster: the arithmetic of Leviathan et al. (arXiv 2211.17192), section 3, on plain numbers.

`cost` is one draft step over one target pass (c in the paper), `num_draft` the tokens drafted a
step (gamma), `acceptance` the chance that a drafted token is kept (alpha), `verify_cost` a pass
over all drafted tokens over a pass over one (v).
"""

from __future__ import annotations

FLOPS_A_BYTE = 6
"""Operations of attention in the time that a byte of weights takes, where nothing is measured yet."""


def attention_cost(flops: int, nbytes: int) -> float:
    """Return a row's attention in `flops` over a pass that reads `nbytes` of weights above no context."""
    return flops / (FLOPS_A_BYTE * nbytes)


def wide_pass(num_rows: int, attention: float) -> float:
    """Return v where a row's attention costs so much: a pass over that many rows over one of one row.

    The matrices cost the same for all widths, which makes it a lower bound.

    >>> wide_pass(8, 0.0), round(wide_pass(8, 0.25), 2)
    (1.0, 2.4)
    """
    return (1 + num_rows * attention) / (1 + attention)


def expected_emitted(acceptance: float, num_draft: int) -> float:
    """Return the tokens a step emits on average if every drafted token is kept with the same chance (equation 1).

    >>> expected_emitted(0.5, 2)
    1.75
    """
    return sum(acceptance**i for i in range(num_draft + 1))


def speedup(acceptance: float, num_draft: int, cost: float, verify_cost: float = 1.0) -> float:
    """Return the speed-up over plain decoding (theorem 3.8, with the cost of verifying in the place of 1)."""
    return expected_emitted(acceptance, num_draft) / (num_draft * cost + verify_cost)


def break_even(num_draft: int, cost: float, verify_cost: float = 1.0) -> float | None:
    """Return the acceptance from which `num_draft` tokens a step are faster; None if not even perfect guesses are."""
    if speedup(1.0, num_draft, cost, verify_cost) <= 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if speedup(middle, num_draft, cost, verify_cost) > 1:
            high = middle
        else:
            low = middle
    return high
