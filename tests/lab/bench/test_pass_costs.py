"""Saved pass costs: any number of rows has a cost, and a file that holds none says so."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import ConfigError
from forerun.lab.bench.pass_costs import PassCosts, read
from forerun.lab.bench.report import markdown_of_passes
from tests.lab.bench.samples import costs


def test_what_kernels_saves_is_read_back(tmp_path):
    path = tmp_path / "kernels.json"
    saved = {"k": 4, "ms": 3.0}, {"k": 1, "ms": 2.0}
    path.write_text(json.dumps({"provenance": {"model": "m"}, "rows": saved}))
    (costs_read,) = read(path)
    assert (costs_read.model, costs_read.ms, costs_read.peer) == ("m", {1: 2.0, 4: 3.0}, None)


WIDTHS = st.dictionaries(st.integers(2, 64), st.floats(0.1, 100), min_size=1, max_size=6)


@given(WIDTHS, st.floats(0.1, 100))
def test_a_measured_width_has_its_own_price_and_others_lie_between(slower, one):
    ms = dict(sorted({1: one, **slower}.items()))
    cost = PassCosts({}, ms)
    assert cost.v(1) == 1
    assert all(cost.v(k) == pytest.approx(ms[k] / one) for k in ms)
    for (a, low), (b, high) in zip([*ms.items()][:-1], [*ms.items()][1:], strict=True):
        assert cost.v((a + b) / 2) == pytest.approx((low + high) / 2 / one)


def test_beyond_the_widest_the_last_stretch_goes_on():
    assert PassCosts({}, {1: 2.0, 8: 4.0, 16: 8.0}).v(32) == pytest.approx(8.0)
    assert PassCosts({}, {1: 2.0}).v(32) == 1, "nothing is known of its slope"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"provenance": {}, "rows": []}', '{"provenance": {}, "rows": [{"k": 2, "ms": 1}]}',
     '{"provenance": {}, "rows": [{"k": 1, "ms": 0}]}'],
)  # fmt: skip
def test_a_file_without_prices_is_named(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json holds no pass costs"):
        read(path)


def test_pass_costs_stand_side_by_side():
    text = markdown_of_passes([costs({1: 2.0, 2: 3.0}), costs({1: 4.0, 8: 8.0}, peer="other")])
    assert "| rows | tiny, ms | v | other, tiny, ms | v |" in text
    assert "| 2 | 3.00 | 1.50 | – | – |" in text
    assert "| 8 | – | – | 8.00 | 2.00 |" in text
