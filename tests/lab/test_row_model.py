"""What rows cost by counted instructions: bounds that hold whatever the constants are."""

from __future__ import annotations

import pytest

from dev import row_model
from dev.row_model import AMX, AVX512, MACHINES, NEON, SME, Machine, lines, seconds

XEON, _, M4 = MACHINES


def test_tiles_are_no_slower_from_four_rows_on() -> None:
    for rows in (4, 8, 16, 32, 512):
        assert seconds(XEON, AMX, rows) <= seconds(XEON, AVX512, rows)


def test_one_unit_for_all_cores_gains_where_one_core_asks_it_alone() -> None:
    """As measured by others: 3.5 times with one thread, 1.2 with eight."""
    one = Machine("one core", 1, M4.ghz, M4.gb_s, M4.kernels, units=1)
    assert seconds(one, SME, 512) < seconds(one, NEON, 512)
    assert seconds(M4, SME, 512) > seconds(M4, NEON, 512)


def test_here_the_model_is_a_bound(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """Zen 4, one core: 196 tokens a second of a prompt were measured with the 1.5B."""
    here = Machine("here", 1, 3.25, 20, (AVX512,))
    assert 0.7 < 196 / (512 / seconds(here, AVX512, 512, "Qwen2.5-1.5B")) < 1.25
    monkeypatch.setattr("sys.argv", ["row_model", "20", "3.25", "1"])
    row_model.main()
    assert lines(here)[0] in capsys.readouterr().out
