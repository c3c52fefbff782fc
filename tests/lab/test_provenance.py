"""What figures depend on is written beside them."""

from __future__ import annotations

from forerun.lab.provenance import provenance


def test_provenance_says_what_figures_depend_on():
    origin = provenance("m", "Q4_1", temperature=0)
    names = "date commit model quant cpu isa torch python temperature"
    assert set(names.split()) <= origin.keys()
