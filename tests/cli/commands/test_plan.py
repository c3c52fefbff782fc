"""`forerun plan` says what is taken, in words and as JSON."""

from __future__ import annotations

import re
from pathlib import Path

from forerun.engine.memory import COMPONENTS
from forerun.system.device import process_nbytes
from tests.cli.helpers import the_json


def test_the_document_has_components_that_add_up(forerun, default_model: Path) -> None:
    budget = process_nbytes() + (260 << 20)  # these tests' own process
    code, out, _ = forerun(
        "plan", "-m", default_model, "-c", 2048, "--memory-budget", f"{budget} B", "--json"
    )
    document = the_json(out)
    assert code == 0
    keys = {"components", "total_bytes", "fits"}
    keys |= {"smallest_bytes", "smallest_bytes_by_kv", "drafting_bytes", "long"}
    assert document.keys() == keys
    rounded = document["smallest_bytes_by_kv"]
    assert rounded["int4"] < rounded["k8v4"] < rounded["int8"] < document["smallest_bytes"]
    assert tuple(document["components"]) == COMPONENTS
    assert sum(document["components"].values()) == document["total_bytes"] <= budget
    assert document["fits"] is True
    assert document["smallest_bytes"] < min(document["total_bytes"], document["drafting_bytes"])


def test_a_budget_that_is_too_small_is_said(forerun, default_model: Path) -> None:
    code, out, _ = forerun("plan", "-m", default_model, "--memory-budget", "100MB")
    assert code == 1
    said = " ".join(out.split())
    assert "It does not fit 95.4 MiB: the smallest budget that works is" in said
    assert "In fewer bits, which may change tokens:" in said
    assert "with --kv int8" in said
    assert " MB" not in said  # one unit
    code, out, _ = forerun("plan", "-m", default_model, "--memory-budget", "100MB", "--json")
    document = the_json(out)
    assert code == 1
    assert document["fits"] is False
    assert document["smallest_bytes"] >= document["total_bytes"] > 100_000_000


def test_what_only_loading_takes_is_a_line_and_bits_that_help_nothing_are_not_offered(
    forerun, default_model: Path
) -> None:
    """Of few tokens of context: the file's header, while it is read, takes more than keys and values."""
    given = ("plan", "-m", default_model, "-c", 64, "--memory-budget", "1MB")
    code, out, _ = forerun(*given)
    assert code == 1
    assert re.search(r"^loading .* [1-9][\d.]* MiB", out, re.MULTILINE)
    assert "--kv" not in out
    code, out, _ = forerun("plan", "-m", default_model, "-c", 4096, "--memory-budget", "1MB")
    assert not re.search(r"^loading", out, re.MULTILINE)
    offered = [*map(int, re.findall(r"(\d+)MiB with --kv", out))]
    assert offered == sorted({*offered}, reverse=True)
    assert len(offered) == 3


def test_vllms_own_command_line_is_read(forerun, default_model: Path) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
    words = ("-tp", "1", "--max_model_len", "512", "--gpu_memory_utilization", "0.8")
    code, out, _ = forerun("plan", default_model, *words, "--speculative_config", config)
    assert code == 0
    assert "prompt_lookup:ngram_max=4,num_draft=5" in out
    assert "at most 512 tokens" in out.replace("\n", " ")
