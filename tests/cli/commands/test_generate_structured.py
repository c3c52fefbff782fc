"""`--json-schema`, `--grammar`: answers that fit, and one line for a schema or grammar that is none."""

from __future__ import annotations

import io
import json

import pytest

from tests.cli.helpers import the_json

pytest.importorskip("llguidance", reason="structured output needs llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 12}, "count": {"enum": [1, 2]}},
    "required": ["word", "count"],
    "additionalProperties": False,
}


@pytest.fixture
def ask(forerun, default_model):
    def run(schema: object, *others: object) -> tuple[int, str, str]:
        model = ("-m", default_model, "-c", 256, "-n", 40)
        return forerun(
            "generate", "Say a word.", *model, "--temp", 0, "--json-schema", schema, *others
        )

    return run


@pytest.mark.parametrize("as_file", [True, False])
def test_the_answer_fits_the_schema(ask, tmp_path, as_file):
    path = tmp_path / "word.json"
    path.write_text(json.dumps(SCHEMA))
    code, out, _ = ask(path if as_file else json.dumps(SCHEMA), "--json")
    answer = json.loads(the_json(out)["text"])
    assert code == 0
    assert {*answer} == {"word", "count"}
    assert answer["count"] in (1, 2)
    assert the_json(out)["tau"] > 1.5


GBNF = 'root ::= ("yes" | "no") " indeed"'


@pytest.mark.parametrize("as_file", [True, False])
def test_the_answer_follows_a_grammar(forerun, default_model, tmp_path, as_file):
    path = tmp_path / "yes.gbnf"
    path.write_text(GBNF)
    given = ("--grammar-file", path) if as_file else ("--grammar", GBNF)
    code, out, _ = forerun("generate", "Is it?", "-m", default_model, "-c", 256, *given, "--json")
    assert code == 0
    assert the_json(out)["text"] in ("yes indeed", "no indeed")


def test_chat_answers_follow_a_form(forerun, default_model, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Is it?\nAnd now?\n"))
    code, out, _ = forerun("chat", default_model, "-c", 512, "--grammar", GBNF)
    assert code == 0
    assert all(line in ("yes indeed", "no indeed") for line in out.split("\n") if line)
    assert out.count("indeed") == 2
