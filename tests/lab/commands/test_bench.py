"""`forerun bench` and its second words, as a user meets them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from forerun.core.errors import ConfigError
from forerun.drafters.base.parse import split_list
from forerun.lab.bench import pass_costs, run
from forerun.lab.bench.peers.base import draft_models
from forerun.lab.bench.workload import read_task
from tests.cli.helpers import FEW, the_json
from tests.mutants import accepting_everything

KEYS = {
    *("model", "quant", "drafter", "task", "category", "prompts", "tokens", "seconds", "tok_s"),
    *("speedup", "speedup_lo", "speedup_hi", "tau", "overhead", "acceptance_rate"),
    *("acceptance_by_depth", "drafted", "accepted", "rejected", "draft_ms", "verify_ms", "ttft_ms"),
    *("identical", "peak_rss_mb", "threads"),
}


@pytest.fixture
def bench(forerun, default_model):
    short = ("-m", default_model, "--task", FEW, "-n", 8, "--limit", 2, "-c", 512)
    return lambda *more: forerun("bench", *short, *more)


def test_bench_prints_tables_and_one_document_and_does_not_measure_twice(bench, forerun, tmp_path):
    out = tmp_path / "run.jsonl"
    code, text, _ = bench("-d", "prompt_lookup:num_draft=3,ngram_max=2", "--out", out, "--json")
    document = the_json(text)
    assert code == 0
    assert {row["drafter"] for row in document["rows"]} == {
        "none",
        "prompt_lookup:num_draft=3,ngram_max=2",
    }
    for row in document["rows"]:
        assert row.keys() >= KEYS
        assert row["identical"] == row["prompts"]
    written = out.read_text()
    code, _, _ = bench("-d", "prompt_lookup:num_draft=3,ngram_max=2", "--out", out)
    assert (code, out.read_text()) == (0, written)
    code, text, _ = forerun("bench", "report", out, "--no-plots", "--json")
    assert code == 0
    assert the_json(text)["rows"] == document["rows"]
    assert "### Speed-up by category" in (tmp_path / "report.md").read_text()


def test_figures_of_another_precision_of_keys_and_values_are_not_taken_for_these(bench, tmp_path):
    out = tmp_path / "run.jsonl"
    once = ("-d", "none", "--limit", 1, "-n", 2, "--out", out, "--json")
    assert bench(*once)[0] == 0
    code, _, err = bench(*once, "--kv", "fp32")
    assert code == 2
    assert "kv None there, 'fp32' here" in err


def test_bench_fails_loudly_when_drafting_changes_tokens(bench, monkeypatch):
    monkeypatch.setattr("forerun.engine.engine.verify", accepting_everything)
    code, text, err = bench("-d", "prompt_lookup", "--limit", 4, "-n", 24, "--no-controller")
    assert code == 1
    same = re.search(r"^prompt_lookup .* ([0-3])/4$", text, re.MULTILINE)
    assert same is not None, "the table is printed all the same"
    assert f"changed the tokens of {4 - int(same[1])} prompts" in err


def test_a_peer_that_is_not_there_is_a_line_of_the_table(bench, tmp_path):
    code, text, _ = bench(
        "-d", "none", "--limit", 1, "--peers", "llama.cpp", "--peers-dir", tmp_path
    )
    assert code == 0
    assert text.count("could not run: llama.cpp is not installed: run make peers") == 2


def test_peers_draft_with_the_first_draft_model_we_draft_with(tmp_path):
    small, other = tmp_path / "small.gguf", tmp_path / "other.gguf"
    small.touch()
    other.touch()
    specs = ["none", f"suffix++draft_model:model={small}", f"draft_model:model={other}"]
    assert draft_models(specs) == [str(small), str(other)]
    assert draft_models(["none", "suffix"]) == []


def test_kernels_ends_with_one_document_and_saves_it(forerun, default_model, tmp_path):
    out = tmp_path / "new" / "kernels.json"
    code, text, _ = forerun(
        "bench", "kernels", "-m", default_model, "--context", 16, "--repeats", 1, "--out", out, "--json"
    )  # fmt: skip
    document = the_json(text)
    assert code == 0
    assert {"bandwidth_gb_s", "weights_mb", "stream_ms", "step_over_stream"} <= document.keys()
    assert [row["k"] for row in document["rows"]] == [1, 2, 4, 8, 16, 32]
    keys = {"k", "ms", "v", "gb_s", "bandwidth_share", "peak_share"}
    assert all(keys <= row.keys() for row in document["rows"])
    assert json.loads(out.read_text()) == document
    (saved,) = pass_costs.read(out)
    assert saved.ms == {row["k"]: row["ms"] for row in document["rows"]}


def test_a_report_has_what_was_measured_and_what_passes_cost(bench, forerun, tmp_path):
    run, costs = tmp_path / "run.jsonl", tmp_path / "kernels.json"
    bench("-d", "lookahead:window=3", "--no-controller", "--categories", "code", "--out", run)
    written = {"provenance": {"model": "m"}, "rows": [{"k": 1, "ms": 1.0}, {"k": 2, "ms": 3.0}]}
    costs.write_text(json.dumps(written))
    code, text, _ = forerun("bench", "report", run, costs, "--no-plots")
    assert code == 0
    assert "### Speed-up by category" in text
    assert "## What passes cost" in text


def test_without_the_controller_every_step_drafts_up_to_the_budget(bench):
    asked = (
        "-d",
        "lookahead:window=5,ngram=4,guesses=5",
        "--categories",
        "chat",
        "--limit",
        1,
        "-n",
        16,
        "--json",
    )

    def drafted(*more):
        _, text, _ = bench(*asked, "--no-controller", *more)
        document = the_json(text)
        row = document["rows"][-1]
        return document["provenance"]["draft_budget"], row["drafted"] / row["passes"]

    (default, wide), (three, narrow) = drafted(), drafted("--draft-budget", 3)
    assert (default, three) == (63, 3)
    assert wide > 8
    assert narrow <= 3


def test_a_task_is_found_by_name_in_a_folder(tmp_path):
    (tmp_path / "toy.jsonl").write_text('{"id": "t", "turns": ["hi"]}\n')
    assert [prompt.id for prompt in read_task("toy", tmp_path)] == ["t"]
    with pytest.raises(ConfigError, match="did you mean 'toy'"):
        read_task("tow", tmp_path)


@pytest.mark.parametrize(
    ("given", "drafters"),
    [
        ("none,suffix", ["none", "suffix"]),
        ("suffix:num_draft=3,factor=2,none", ["suffix:num_draft=3,factor=2", "none"]),
        (
            "draft_model:model=a,suffix++lookahead:window=3,none",
            ["draft_model:model=a", "suffix++lookahead:window=3", "none"],
        ),
        (
            "suffix:factor=2, prompt_lookup:num_draft=3",
            ["suffix:factor=2", "prompt_lookup:num_draft=3"],
        ),
    ],
)
def test_a_comma_ends_a_drafter_unless_an_option_follows(given, drafters):
    assert split_list(given) == drafters


def test_two_drafters_are_compared_with_each_other(bench):
    code, text, _ = bench("-d", "prompt_lookup", "--baseline", "suffix", "--json")
    rows = [row for row in the_json(text)["rows"] if row["category"] == "all"]
    ratios = {row["drafter"]: row["over_baseline"] for row in rows}
    speeds = {row["drafter"]: row["speedup"] for row in rows}
    assert code == 0
    assert ratios["suffix"] == 1
    assert {*ratios} == {"none", "prompt_lookup", "suffix"}
    assert ratios["prompt_lookup"] == pytest.approx(
        speeds["prompt_lookup"] / speeds["suffix"], rel=0.01
    )
    for row in rows:
        assert row["over_baseline_lo"] <= row["over_baseline"] <= row["over_baseline_hi"]
    _, shown, _ = bench("-d", "prompt_lookup", "--baseline", "suffix", "--limit", 1)
    assert "over suffix" in shown


def test_sampling_options_reach_the_requests_and_the_provenance(bench):
    code, text, _ = bench("--top-p", "0.9", "--temp", "0.8", "-d", "suffix", "--json")
    assert code == 0
    assert the_json(text)["provenance"]["sampling"] == {"top_p": 0.9}
    code, text, _ = bench("--stop", "the", "-n", "40", "-d", "none", "--json")
    tokens = next(row["tokens"] for row in the_json(text)["rows"])
    assert code == 0
    assert tokens < 80, "the answers end at the first 'the'"


def test_batches_that_no_category_fills_are_named(bench):
    _, _, err = bench("-d", "none", "--batch", 3)  # two prompts, of two categories
    assert "--batch 3: at most 1 are decoded together" in err


def test_the_default_is_what_requests_get_by_default(bench, default_model, forerun):
    code, text, _ = forerun("bench", default_model, "-n", 4, "--limit", 1, "-c", 512, "--json")
    assert code == 0
    assert [row["drafter"] for row in the_json(text)["rows"] if row["category"] == "all"] == [
        "none",
        "mlp_speculator++recycling",
    ]


def test_llama_benchs_options_print_its_table(forerun, tiny_gguf):
    line = ["bench", "-m", str(tiny_gguf), "-p", "16,32", "-n", "8", "--rounds", "2", "-c", "64"]
    code, out, err = forerun(*line)
    assert code == 0, err
    head, rule, *rows = [
        [cell.strip() for cell in text.strip("|").split("|")] for text in out.splitlines()
    ]
    assert head == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert all(set(cell) <= {"-", ":"} for cell in rule)
    assert [row[5] for row in rows] == ["pp16", "pp32", "tg8"]
    assert all(float(row[6].split(" ± ")[0]) > 0 for row in rows)
    code, _, err = forerun("bench", "-m", str(tiny_gguf), "-p", "many")
    assert code == 2
    assert "--n-prompt must be lengths such as 512,1024, got 'many'" in err


def test_bench_stopped_by_ctrl_c_shows_what_it_measured(
    forerun, default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, measured = run.Bench._measure, []

    def stopping(self, group):
        if measured:
            raise KeyboardInterrupt
        measured.append(group)
        return measure(self, group)

    monkeypatch.setattr(run.Bench, "_measure", stopping)
    given = ("-m", default_model, "--task", FEW, "-n", 8, "-t", 1, "-c", 256, "-d", "suffix")
    code, out, err = forerun("bench", *given, "--json")
    assert code == 130
    assert "stopped: 1 of" in err
    rows = [row for row in the_json(out)["rows"] if row["category"] == "all"]
    assert {row["drafter"]: row["prompts"] for row in rows} == {"none": 1, "suffix": 1}
