"""Rows of figures from measurements with known answers."""

import pytest

from forerun.lab.bench.report import markdown, show
from forerun.lab.bench.summary import num_different
from tests.lab.bench.samples import ORIGIN, measured, rows


def row_of(table, drafter, category="all"):
    (row,) = [r for r in table if (r["drafter"], r["category"]) == (drafter, category)]
    return row


def test_speed_is_total_tokens_over_total_seconds_not_a_mean_of_rates():
    table = rows(
        [
            *(measured("none", unit, s) for unit, s in (("a1", 1.0), ("b1", 3.0))),
            *(measured("suffix", unit, s) for unit, s in (("a1", 0.25), ("b1", 1.75))),
        ],
        ORIGIN,
    )
    total = row_of(table, "suffix")
    assert total["tok_s"] == 10.0
    assert total["speedup"] == 2.0
    assert (row_of(table, "suffix", "a")["speedup"], row_of(table, "suffix", "b")["speedup"]) == (
        4.0,
        1.7143,
    )
    assert total["speedup_lo"] == pytest.approx(1.7143, abs=1e-3)
    assert total["speedup_hi"] == 4.0
    assert row_of(table, "suffix", "a")["speedup_lo"] is None, "one prompt has no spread"
    assert total["seconds"] == 3.0, "with the time to the first tokens"


def test_a_disturbed_round_does_not_move_the_figure():
    seconds = {"none": (1.0, 1.0, 1.0), "suffix": (0.5, 0.5, 9.0)}
    table = rows(
        [measured(n, "a1", s, round=r) for n in seconds for r, s in enumerate(seconds[n])], ORIGIN
    )
    assert row_of(table, "suffix")["speedup"] == 2.0


def test_paired_times_have_a_narrow_interval_however_prompts_differ():
    units = [(f"a{i}", 1.0 + 10 * i) for i in range(20)]
    table = rows(
        [measured(n, u, s / d) for n, d in (("none", 1), ("suffix", 2)) for u, s in units], ORIGIN
    )
    row = row_of(table, "suffix")
    assert (row["speedup_lo"], row["speedup_hi"]) == (2.0, 2.0)


def test_tau_acceptance_and_overhead():
    drafted = measured(
        "suffix", "a1", 0.5, passes=4, emitted=10, drafted=8, accepted=6,
        drafted_by_depth=(4, 4), accepted_by_depth=(4, 2), draft_s=0.01, verify_s=0.4,
    )  # fmt: skip
    row = row_of(rows([measured("none", "a1", 1.0), drafted], ORIGIN), "suffix")
    assert (row["tau"], row["speedup"], row["overhead"]) == (2.5, 2.0, 0.25)
    assert (row["acceptance_rate"], row["acceptance_by_depth"]) == (0.75, [1.0, 0.5])
    assert (row["drafted"], row["accepted"], row["rejected"]) == (8, 6, 2)
    assert (row["draft_ms"], row["verify_ms"]) == (10.0, 400.0)


def test_a_changed_token_is_counted_for_ours_and_only_shown_for_peers():
    other = [[1, 2, 3]]
    table = rows(
        [
            measured("none", "a1", 1.0),
            measured("none", "a2", 1.0),
            measured("suffix", "a1", 1.0),
            measured("suffix", "a2", 1.0, token_ids=other),
            measured("peer plain", "a1", 1.0, peer="peer", token_ids=other),
            measured("peer plain", "a2", 1.0, peer="peer", token_ids=other),
        ],
        ORIGIN,
    )
    assert (row_of(table, "suffix")["identical"], row_of(table, "suffix")["prompts"]) == (1, 2)
    assert (row_of(table, "plain")["identical"], row_of(table, "plain")["peer"]) == (0, "peer")
    assert num_different(table) == 1


def test_sampled_tokens_are_compared_with_ours_where_a_seed_fixes_them():
    other = [[9]]
    measurements = [
        measured("none", "a1", 1.0),
        measured("suffix", "a1", 1.0, token_ids=other),
        measured("peer plain", "a1", 1.0, peer="peer", token_ids=other),
    ]
    sampled = {**ORIGIN, "temperature": 1}
    for origin, identical in ((sampled, None), ({**sampled, "seed": 0}, 0)):
        table = rows(measurements, origin)
        assert row_of(table, "suffix")["identical"] == identical
        assert row_of(table, "plain")["identical"] is None
        assert num_different(table) == (identical is not None)


def test_a_peer_that_cannot_run_stays_in_the_table():
    table = rows(
        [
            measured("none", "a1", 1.0),
            measured("peer plain", "a1", 0.0, peer="peer", error="no wheel"),
        ],
        ORIGIN,
    )
    assert row_of(table, "plain")["error"] == "no wheel"
    assert "peer plain | could not run: no wheel" in markdown(ORIGIN, table)


def test_a_row_says_in_which_weights_a_peer_ran():
    table = rows(
        [measured("none", "a1", 1.0), measured("peer plain", "a1", 1.0, peer="peer", quant="int4")],
        ORIGIN,
    )
    assert [row["quant"] for row in table if row["category"] == "all"] == ["F32", "int4"]
    assert "| peer plain | int4 |" in markdown(ORIGIN, table)


def test_nothing_decoded_is_no_division_by_zero():
    empty = {"token_ids": [[1]], "decode_tokens": 0, "passes": 0, "emitted": 0}
    table = rows([measured(n, "a1", 0.0, **empty) for n in ("none", "suffix")], ORIGIN)
    assert (row_of(table, "suffix")["speedup"], row_of(table, "suffix")["tok_s"]) == (1.0, 0.0)
    assert markdown(ORIGIN, table)


def test_prompts_without_a_category_make_one_row():
    table = rows([measured("none", "a1", 1.0, category="all")], ORIGIN)
    assert [row["category"] for row in table] == ["all"]


def test_rounds_repeat_the_clock_not_the_counts():
    counts = {"passes": 5, "drafted": 8, "accepted": 5, "draft_s": 0.1}
    table = rows(
        [measured(n, "a1", 1.0, round=r, **counts) for n in ("none", "suffix") for r in range(3)],
        ORIGIN,
    )
    row = row_of(table, "suffix")
    assert (row["passes"], row["drafted"], row["draft_ms"], row["tokens"]) == (5, 8, 100.0, 11)


def test_categories_are_printed_in_the_order_of_the_file_with_times_to_first_token(capsys):
    table = rows(
        [
            measured("none", "x1", 1.0, category="1k", ttft_s=[0.5]),
            measured("none", "y1", 1.0, category="16k", ttft_s=[61.25]),
        ],
        ORIGIN,
    )
    show(ORIGIN, table, None)
    printed = capsys.readouterr().out.splitlines()
    lines = [line.split() for line in printed if line.startswith(("1k ", "16k ", "category"))]
    assert [line[0] for line in lines] == ["category", "1k", "16k"]
    assert [line[-1] for line in lines] == ["s", "0.50", "61.25"]
