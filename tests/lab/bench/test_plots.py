"""Pictures are drawn from any rows there can be, deterministically, and only what has figures."""

import sys

import pytest

from forerun.core.errors import ConfigError
from forerun.lab.bench.plots import draw
from forerun.lab.bench.plots.pictures import speedups
from forerun.lab.bench.plots.style import looks
from tests.lab.bench.samples import ORIGIN, costs, measured, rows

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
BENCH = ("speedup", "acceptance")
COSTS, PEER = costs({1: 1.0, 2: 1.25, 8: 3.0}), costs({1: 2.0, 4: 6.0}, peer="other")


def names_of(drawn, tmp_path):
    for name in drawn.values():
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / name).with_suffix(".svg").read_text()
    return [name.removeprefix("toy-").removesuffix(".png") for name in drawn.values()]


def test_every_picture_is_written_as_png_and_svg(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = draw(BENCH, ROWS, tmp_path, "toy")
    assert names_of(drawn, tmp_path) == ["speedup", "acceptance"]


def test_pass_costs_are_drawn_with_the_peers(tmp_path):
    pytest.importorskip("matplotlib")
    assert names_of(draw(("v",), [COSTS, PEER], tmp_path, "toy"), tmp_path) == ["v"]
    assert draw(("v",), [], tmp_path, "toy") == {}


def test_a_training_run_is_drawn_with_or_without_a_measurement(tmp_path):
    pytest.importorskip("matplotlib")
    steps = [{"step": i, "tokens": 1000 * i, "loss": 9 / i} for i in range(1, 5)]
    assert draw(("training",), [], tmp_path, "toy") == {}
    assert names_of(draw(("training",), steps[:1], tmp_path, "toy"), tmp_path) == ["training"]
    before = (tmp_path / "toy-training.svg").read_text()
    first = {"step": 0, "tokens": 0, "tau": 1.2, "tau_sampled": 1.1}  # of a drafter that goes on
    assert draw(("training",), [first], tmp_path, "toy") == {}
    draw(("training",), [first, *steps], tmp_path, "toy")
    assert (tmp_path / "toy-training.svg").read_text() != before
    steps[-1] |= {"tau": 1.5, "tau_sampled": 1.4}
    draw(("training",), steps, tmp_path, "toy")
    assert (tmp_path / "toy-training.svg").read_text() != before


def test_no_two_of_many_systems_look_alike():
    """Also not those of one family, which a legend has to tell apart."""
    chosen = [tuple(look.values()) for look in looks([False] * 49 + [True] * 4)]
    assert len(set(chosen)) == 53


def test_the_same_figures_give_the_same_file(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "b").mkdir()
    for folder in (tmp_path, tmp_path / "b"):
        draw(("v",), [COSTS], folder, "toy")
    assert (tmp_path / "toy-v.svg").read_bytes() == (tmp_path / "b" / "toy-v.svg").read_bytes()


def test_plain_decoding_alone_draws_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    assert draw(BENCH, rows([measured("none", "a1", 1.0)], ORIGIN), tmp_path, "toy") == {}
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ConfigError, match=r"'\.\[plots\]'"):
        draw(BENCH, ROWS, tmp_path, "toy")


@pytest.mark.parametrize(("num_systems", "bands"), [(8, ["all", "a", "b"]), (9, ["all"])])
def test_a_crowd_is_compared_over_all_prompts_only(num_systems, bands):
    plt = pytest.importorskip("matplotlib.pyplot")
    names = ["none", *(f"suffix:num_draft={k}" for k in range(1, num_systems + 1))]
    figure, axes = plt.subplots()
    assert speedups(axes, rows([measured(n, u, 1.0) for n in names for u in ("a1", "b1")], ORIGIN))
    assert [label.get_text() for label in axes.get_yticklabels()] == bands
    plt.close(figure)
