"""Options read from text and tables, spelled back, described; every mistake is named."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import options
from forerun.core.errors import ConfigError


class Order(StrEnum):
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Base:
    shared: int = 1
    """In every drafter."""


@dataclass(frozen=True, slots=True)
class Options(Base):
    model: str = "tiny"
    """Path or name of the draft model."""
    num_draft: int = 5
    min_token_prob: float = 0.1
    """Stop below this probability;
    0 never stops."""
    tree: bool = False
    seed: int | None = None
    score: Literal["sum", "max"] = "sum"
    order: Order = Order.LAST
    widths: tuple[int, ...] = ()
    span: tuple[int, float] = (1, 0.5)
    cache: Path | None = None


@dataclass(frozen=True, slots=True)
class Required:
    model: str
    num_draft: int = 5


def read(text: str) -> Options:
    return options.build(Options, options.parse(f"x:{text}")[1])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("suffix", ("suffix", {})),
        (" suffix : ", ("suffix", {})),
        ("suffix:min_token_prob=0.2", ("suffix", {"min_token_prob": "0.2"})),
        ("a:x=1, y = 2", ("a", {"x": "1", "y": " 2"})),
        ("d:branch=2,2,1,model=m", ("d", {"branch": "2,2,1", "model": "m"})),
        ("d:model=C:/x=y.gguf", ("d", {"model": "C:/x=y.gguf"})),
        ("d:model=", ("d", {"model": ""})),
    ],
)
def test_parse(spec: str, expected: tuple[str, dict[str, str]]) -> None:
    assert options.parse(spec) == expected


@pytest.mark.parametrize("spec", ["", ":a=1", "x:a", "x:a=1,a=2", "x:=1", "x:a,b=1"])
def test_parse_refuses_what_is_no_spec(spec: str) -> None:
    with pytest.raises(ConfigError):
        options.parse(spec)


def test_texts_become_the_types_of_the_fields() -> None:
    text = "shared=2,model=a/b.gguf,num-draft=7,min_token_prob=1,tree=yes,seed=none,score=max"
    assert read(text) == Options(2, "a/b.gguf", 7, 1.0, True, None, "max")
    text = "seed=3,order=first,widths=2,2,1,span=4,0.25,cache=/tmp/x"
    assert read(text) == Options(
        seed=3, order=Order.FIRST, widths=(2, 2, 1), span=(4, 0.25), cache=Path("/tmp/x")
    )
    assert isinstance(read("min_token_prob=1").min_token_prob, float)
    assert read("widths=").widths == ()


def test_typed_values_from_json_are_taken() -> None:
    table = json.loads('{"num_draft": 3, "min_token_prob": 1, "tree": true, "widths": [2, 1]}')
    assert options.build(Options, table) == Options(
        num_draft=3, min_token_prob=1.0, tree=True, widths=(2, 1)
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_draft", "many", "option 'num_draft' must be a whole number, got 'many'"),
        ("num_draft", 2.5, "option 'num_draft' must be a whole number, got 2.5"),
        ("num_draft", True, "option 'num_draft' must be a whole number, got True"),
        ("min_token_prob", "", "option 'min_token_prob' must be a number, got ''"),
        ("tree", "maybe", "option 'tree' must be true or false, got 'maybe'"),
        ("seed", "x", "option 'seed' must be a whole number or none, got 'x'"),
        ("score", "min", "option 'score' must be sum or max, got 'min'"),
        ("order", "middle", "option 'order' must be first or last, got 'middle'"),
        ("widths", "1,x", "option 'widths' must be a whole number,..., got '1,x'"),
        ("span", [1], "option 'span' must be a whole number,a number, got [1]"),
        ("model", 3, "option 'model' must be text, got 3"),
        ("num_drafts", 3, "unknown option 'num_drafts': did you mean 'num_draft'?"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options.build(Options, {key: value})
    assert str(caught.value).startswith(message)


def test_a_missing_required_option_is_named() -> None:
    with pytest.raises(ConfigError, match="option 'model' must be given"):
        options.build(Required, {"num_draft": 2})


def test_an_option_in_two_spellings_is_refused() -> None:
    with pytest.raises(ConfigError, match="'num_draft' is given twice"):
        options.build(Options, {"num_draft": 2, "num-draft": 3})


def test_describe_takes_help_from_the_attribute_docstrings() -> None:
    docs = {doc.name: doc for doc in options.describe(Options)}
    assert list(docs)[:3] == ["shared", "model", "num_draft"]
    assert docs["shared"].help == "In every drafter."
    assert docs["num_draft"] == options.OptionDoc("num_draft", "a whole number", "5", "")
    assert docs["min_token_prob"].help == "Stop below this probability;\n0 never stops."
    assert docs["order"].type == "first or last"
    assert [docs[name].default for name in ("tree", "seed", "order", "widths", "span")] == [
        "false",
        "none",
        "last",
        "",
        "1,0.5",
    ]
    assert options.describe(Required)[0].default is None


# A text cannot hold what begins the next option, and stands for None where None is allowed.
texts = st.text(st.characters(exclude_characters="=", exclude_categories=["Cs"]), max_size=9)


@given(
    st.builds(
        Options,
        shared=st.integers(),
        model=texts,
        min_token_prob=st.floats(allow_nan=False),
        tree=st.booleans(),
        seed=st.none() | st.integers(),
        score=st.sampled_from(["sum", "max"]),
        order=st.sampled_from(Order),
        widths=st.lists(st.integers()).map(tuple),
        span=st.tuples(st.integers(), st.floats(allow_nan=False)),
        cache=st.none() | st.just(Path("some/where")),
    )
)
def test_spelled_options_read_back_the_same(given_options: Options) -> None:
    name, values = options.parse(options.format_spec("drafter", given_options))
    assert name == "drafter"
    assert options.build(Options, values) == given_options
    assert options.build(Options, asdict(given_options)) == given_options


def test_spell_leaves_defaults_out() -> None:
    assert options.format_spec("suffix", Options()) == "suffix"
    assert (
        options.format_spec("suffix", Options(num_draft=2, tree=True))
        == "suffix:num_draft=2,tree=true"
    )
