"""What a pass costs: every width is timed, the figures fit together, mistakes are told."""

import pytest

from forerun.bench.kernels import measure
from forerun.core.errors import ConfigError
from tests.tiny import tiny_model

MODEL = tiny_model()


def test_figures_fit_together():
    *_, costs = measure(MODEL, context=8, repeats=3, widths=(1, 2, 4))
    document = costs.document()
    assert [row["k"] for row in document["rows"]] == [1, 2, 4]
    assert document["rows"][0]["v"] == 1
    assert document["weights_mb"] == round(MODEL.nbytes() / 1e6, 2)
    for row in document["rows"]:
        assert row["v"] == pytest.approx(costs.pass_s[row["k"]] / costs.pass_s[1], abs=1e-3)
    assert document["step_over_stream"] == pytest.approx(costs.pass_s[1] / costs.read_s, abs=1e-3)


def test_every_width_is_a_pass_of_that_many_rows_over_the_same_context():
    model, rows = tiny_model(), []
    forward = model.forward

    def counting(batch, cache, taps=()):
        rows.append((batch.num_rows, cache.length(0)))
        return forward(batch, cache, taps)

    model.forward = counting
    list(measure(model, context=8, repeats=2, widths=(1, 3)))
    assert rows == [(8, 0), *[(1, 8), (3, 8)] * 3]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"context": 510}, "context"),
        ({"context": 0}, "context"),
        ({"repeats": 0}, "repeats"),
        ({"widths": (2, 4)}, "widths"),
        ({"widths": (0, 1)}, "widths"),
    ],
)
def test_impossible_sizes_are_refused(options, what):
    with pytest.raises(ConfigError, match=f"{what} must be"):
        list(measure(MODEL, **options))
