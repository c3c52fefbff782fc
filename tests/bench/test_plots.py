"""Pictures are drawn from any rows there can be, deterministically, and only what has figures."""

import sys

import pytest

from forerun.bench.plots import draw
from forerun.bench.summary import rows
from forerun.core.errors import ConfigError
from tests.bench.samples import ORIGIN, measured

DRAFTED = {
    "drafted": 8,
    "accepted": 6,
    "drafted_by_depth": (4, 4),
    "accepted_by_depth": (4, 2),
    "passes": 4,
}
ROWS = rows(
    [
        *(measured("none", unit, 1.0) for unit in ("a1", "a2", "b1")),
        *(measured("suffix", unit, 0.5, **DRAFTED) for unit in ("a1", "a2", "b1")),
        *(measured("peer plain", unit, 2.0, peer="peer") for unit in ("a1", "a2", "b1")),
        measured("peer lookup", "a1", 0.0, peer="peer", error="broke"),
    ],
    ORIGIN,
)


def test_every_picture_is_written_as_png_and_svg(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = draw(ROWS, tmp_path, "toy")
    assert list(drawn.values()) == ["toy-speedup.png", "toy-acceptance.png", "toy-tau.png"]
    for name in drawn.values():
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / name).with_suffix(".svg").read_text()


def test_the_same_figures_give_the_same_file(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "b").mkdir()
    draw(ROWS, tmp_path, "toy")
    draw(ROWS, tmp_path / "b", "toy")
    assert (tmp_path / "toy-tau.svg").read_bytes() == (tmp_path / "b" / "toy-tau.svg").read_bytes()


def test_plain_decoding_alone_draws_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    assert draw(rows([measured("none", "a1", 1.0)], ORIGIN), tmp_path, "toy") == {}
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ConfigError, match=r"forerun\[plots\]"):
        draw(ROWS, tmp_path, "toy")
