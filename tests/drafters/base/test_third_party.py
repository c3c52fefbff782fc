"""Drafters of other people: from a file, an installed package or an object; and what is said of what is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun import LLM
from forerun.core import registry
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.drafters.base.contract import Target
from forerun.drafters.base.find import describe
from forerun.drafters.base.parse import split_list
from forerun.drafters.base.spec import DrafterSpec
from forerun.drafters.base.union import Union
from forerun.drafters.suffix import Options, Suffix
from tests.drafters.helpers import REPEAT
from tests.tiny import tiny_model

TARGET = Target(tiny_model(3, sharpness=3.0), None, max_num_seqs=4, max_len=256)


@pytest.fixture
def repeat(tmp_path: Path) -> Path:
    path = tmp_path / "my-repeat.py"
    path.write_text(REPEAT)
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with two entry points, one of which names no module."""
    info = tmp_path / "site" / "others-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    points = "[forerun.drafters]\nrepeat = their_repeat\nfunction = their_repeat:build\n"
    (info / "entry_points.txt").write_text(points)
    (info.parent / "their_repeat.py").write_text(REPEAT)
    monkeypatch.syspath_prepend(str(info.parent))
    return info


def test_a_file_is_a_drafter_with_options(repeat):
    spec = DrafterSpec.of(f"{repeat}:num_draft=2")
    assert spec.build(TARGET).options.num_draft == 2
    assert spec.text() == f"{repeat}:num_draft=2"
    assert DrafterSpec.of(str(repeat), num_draft=3).text() == str(repeat)
    assert (
        DrafterSpec.of({"method": str(repeat), "num_draft": 4}).build(TARGET).options.num_draft == 4
    )
    with pytest.raises(ConfigError, match="unknown option 'wide'"):
        DrafterSpec.of(f"{repeat}:wide=2").build(TARGET)


def test_files_combine_with_drafters_and_each_other(repeat, tmp_path):
    union = DrafterSpec.of(f"{repeat}++suffix").build(TARGET)
    assert isinstance(union, Union)
    assert isinstance(union.second, Suffix)
    odd = tmp_path / "c++" / "a+b.py"
    odd.parent.mkdir()
    odd.write_text(REPEAT)
    assert DrafterSpec.of(f"{odd}:num_draft=1").parts == ()
    assert DrafterSpec.of(f"suffix++{repeat}++lookahead").name == f"suffix++{repeat}++lookahead"


def test_files_stand_in_lists():
    assert split_list("none,my/a.py:num_draft=2,suffix,b.py") == [
        "none", "my/a.py:num_draft=2", "suffix", "b.py",
    ]  # fmt: skip
    assert split_list("suffix++a.py:x=1,2,./b.py++suffix") == [
        "suffix++a.py:x=1,2",
        "./b.py++suffix",
    ]


def test_a_file_is_imported_once_until_it_changes(repeat):
    first = registry.load_file(str(repeat))
    assert registry.load_file(str(repeat)) is first
    repeat.write_text(REPEAT.replace("int = 3", "int = 5"))
    os.utime(repeat, ns=(1, 1))
    assert registry.load_file(str(repeat)).Options().num_draft == 5


def test_an_installed_drafter_is_named_by_its_entry_point(installed):
    assert "repeat" in registry.names("drafters")
    assert type(DrafterSpec.of("repeat").build(TARGET)).__module__ == "their_repeat"
    assert isinstance(DrafterSpec.of("suffix++repeat").build(TARGET), Union)
    docs = {name: describe(name) for name in ("repeat", "function", "suffix")}
    assert [doc.origin for doc in docs.values()] == ["others", "others", "forerun"]
    assert docs["repeat"].summary == "Guess that the last token repeats."
    assert "must name a module" in docs["function"].summary, "one that is broken hides no other"
    with pytest.raises(
        ConfigError, match=r"entry point 'function' of forerun\.drafters must name a"
    ):
        DrafterSpec.of("function").build(TARGET)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(options, target): ...", "it has no `Options`"),
        (REPEAT.replace("def build", "def make"), "it has no `build`"),
        (REPEAT.replace("@dataclass(frozen=True)\n", ""), "must be a frozen dataclass"),
        (REPEAT.replace("return Repeat(options)", "return 3"), "its int does not derive from"),
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
        ("def build(", "cannot be imported: SyntaxError"),
    ],
)
def test_what_is_no_drafter_is_told_why(tmp_path, text, message):
    path = tmp_path / "wrong.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        DrafterSpec.of(str(path)).build(TARGET)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"there is no file 'no/where\.py'"):
        DrafterSpec.of("no/where.py:num_draft=2")


def test_a_drafter_itself_is_taken_as_it_is():
    drafter = Suffix(Options())
    spec = DrafterSpec.of(drafter, model=None)
    assert spec.build(TARGET) is drafter
    assert spec.text() == "Suffix"
    with pytest.raises(ConfigError, match="takes no option 'num_draft'"):
        DrafterSpec.of(drafter, num_draft=3)
    with pytest.raises(ConfigError, match="its object does not derive"):
        DrafterSpec.of(object())  # type: ignore[arg-type]


def test_an_llm_takes_a_file_or_an_object_and_says_the_same(repeat, default_model):
    params = SamplingParams(temperature=0, max_tokens=12)
    llm = LLM(str(default_model), drafter=Suffix(Options()), max_model_len=128)
    plain = llm.with_drafter("none").generate("one two one two", params)
    assert (
        llm.generate("one two one two", params)[0].outputs[0].token_ids
        == plain[0].outputs[0].token_ids
    )
    drafted = llm.with_drafter(f"{repeat}:num_draft=1").generate("one two one two", params)
    assert drafted[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
