"""A researcher's hour: a drafter written from docs/adding-a-drafter.md, checked, measured, installed, handed over."""

from __future__ import annotations

import importlib

import pytest

from forerun import LLM, SamplingParams
from forerun.lab.tune import report
from tests.cli.helpers import FEW, the_json
from tests.drafters.helpers import RECYCLING

PROMPT = "The capital of France is Paris. The capital of France is"


@pytest.fixture
def here(tmp_path, monkeypatch, default_model):
    """The folder in which the drafter was written."""
    (tmp_path / "recycling.py").write_text(RECYCLING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_keeps_the_contract(here, forerun):
    code, out, _ = forerun("check-drafter", "recycling.py")
    assert code == 0, out
    assert "BROKEN" not in out


def test_its_options_are_shown(here, forerun):
    code, out, _ = forerun("drafters", "recycling.py")
    assert code == 0
    assert "recycling.py (file): Token recycling" in out
    assert "Nodes of a tree." in out


def test_tokens_are_those_of_plain_decoding_and_it_is_measured(here, forerun):
    code, out, _ = forerun(
        *("verify", "-d", "recycling.py", "--prompts", FEW, "--limit", 2, "-n", 24, "--json")
    )
    document = the_json(out)
    assert code == 0
    assert document["identical"]
    assert document["tau"] > 1
    short = ("--task", FEW, "--limit", 1, "-n", 8)
    code, out, _ = forerun(
        "bench", "-d", "recycling.py:num_draft=3,suffix++recycling.py", *short, "--json"
    )
    assert code == 0
    named = {row["drafter"] for row in the_json(out)["rows"]}
    assert named == {"none", "recycling.py:num_draft=3", "suffix++recycling.py"}


def test_tune_names_it(here, forerun, monkeypatch):
    monkeypatch.setattr(report, "CONTEXTS", (16, 32))
    monkeypatch.setattr(report, "WIDTHS", (1, 4))
    short = ("--prompts", FEW, "--limit", 1, "-n", 8, "--repeats", 1, "-c", 256, "-t", 1)
    code, out, _ = forerun("tune", "-d", "recycling.py", *short, "--json")
    assert code == 0
    assert [row["drafter"] for row in the_json(out)["drafters"]] == ["recycling.py"]


def test_an_installed_package_offers_it_by_name(here, forerun, monkeypatch):
    info = here / "site" / "my_package-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[forerun.drafters]\nrecycle = my_package.recycling\n")
    package = here / "site" / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "recycling.py").write_text(RECYCLING)
    monkeypatch.syspath_prepend(str(here / "site"))
    importlib.invalidate_caches()
    code, out, _ = forerun("drafters", "recycle")
    assert code == 0
    assert "recycle (my_package)" in out
    assert "recycle" in forerun("drafters")[1]
    code, out, _ = forerun(
        "generate", PROMPT, "--raw", "-d", "recycle:num_draft=2", "-n", 8, "-c", 256, "--json"
    )
    assert code == 0
    assert the_json(out)["drafter"].startswith("recycle")


def test_a_program_hands_it_over_as_an_object(here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    module = importlib.import_module("recycling")
    params = SamplingParams(temperature=0, max_tokens=24)
    llm = LLM(max_model_len=256)
    plain = llm.with_drafter("none").generate(PROMPT, params)[0].outputs[0].token_ids
    drafter = module.build(module.Options(num_draft=4), llm.target())
    drafting = llm.with_drafter(drafter)
    drafting.generate(PROMPT, params)
    assert drafting.generate(PROMPT, params)[0].outputs[0].token_ids == plain
    assert drafter.probs.any()
    again = LLM(drafter=module.build(module.Options(), llm.target()), max_model_len=256)
    assert again.generate(PROMPT, params)[0].outputs[0].token_ids == plain


MISTAKES = [
    ("return Draft(tokens, parents", "return list(tokens) or (tokens, parents",
     "drafter Recycling: propose returned a"),
    ("return Draft(tokens, parents", "return Draft(tokens, parents[::-1]",
     "it must be -1 or an earlier node"),
    ("min(budget, self.max_nodes)", "99", "nodes, its budget was"),
    ("features = Features", "feature = Features", "no attribute"),
]  # fmt: skip


@pytest.fixture(scope="module")
def plain(default_model) -> str:
    """What the default model says by itself."""
    llm = LLM(str(default_model), drafter="none", max_model_len=256)
    return llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=48))[0].outputs[0].text


@pytest.mark.parametrize(("right", "wrong", "message"), MISTAKES)
def test_a_mistake_is_told_in_a_line_and_the_answer_comes_all_the_same(
    here, forerun, plain, caplog, right, wrong, message
):
    assert right in RECYCLING
    (here / "wrong.py").write_text(RECYCLING.replace(right, wrong))
    short = ("-n", 48, "-c", 256, "--json", "--temp", 0)
    asked = ("--draft-budget", 2, "--no-controller")  # whatever the machine has to do beside it
    code, out, _ = forerun("generate", PROMPT, "--raw", *short, *asked, "-d", "wrong.py")
    assert code == 0
    assert the_json(out)["text"] == plain
    assert caplog.records, "nothing was said"
    first = caplog.records[0].getMessage()
    assert message in first
    assert "Recycling" in first
    assert first.endswith("going on without drafts")
    assert "\n" not in first
