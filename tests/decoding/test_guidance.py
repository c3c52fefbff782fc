"""Structured output of the default model: valid, and the same tokens with and without drafting."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding import grammar_check
from forerun.decoding.guidance import NUM_CACHED, Grammars, Guided, _Vocabulary
from forerun.llm import LLM
from forerun.weights.checkpoint import open_checkpoint
from tests.weights.files import write_gguf

pytest.importorskip("llguidance", reason="structured output needs llguidance")
jsonschema = pytest.importorskip("jsonschema", reason="answers are checked by jsonschema")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 16}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "colours", "address"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Describe a person as JSON."}]
FORMS = {
    "schema": StructuredOutputsParams(json=PERSON),
    "regex": StructuredOutputsParams(regex=r"[a-z]{3,10}@[a-z]{3,10}\.(com|org)"),
    "choice": StructuredOutputsParams(choice=["a (very) long answer", "another one", "no"]),
    "ebnf": StructuredOutputsParams(
        grammar='root ::= "The " ("sea" | "sky") " is " colour\ncolour ::= "blue" | "grey"'
    ),
    "lark": StructuredOutputsParams(grammar='start: "yes, " /[a-z ]{3,12}/ "."'),
}


@pytest.fixture(scope="module")
def plain(default_model) -> LLM:
    return LLM(str(default_model), drafter="none", max_model_len=512, max_num_seqs=4)


@pytest.fixture(scope="module")
def drafting(plain) -> LLM:
    return plain.with_drafter("prompt_lookup:ngram_min=1")


def fits(name: str, text: str) -> bool:
    form = FORMS[name]
    if form.json:
        jsonschema.validate(json.loads(text), PERSON)
        return True
    if form.choice:
        return text in form.choice
    patterns = {
        "regex": form.regex,
        "ebnf": "The (sea|sky) is (blue|grey)",
        "lark": r"yes, [a-z ]{3,12}\.",
    }
    return re.fullmatch(patterns[name], text) is not None


@pytest.mark.parametrize("temperature", [0, 0.9])
@pytest.mark.parametrize("name", FORMS)
def test_answers_have_the_form_and_drafting_changes_no_token(name, temperature, plain, drafting):
    params = SamplingParams(
        temperature=temperature, seed=3, max_tokens=100, structured_outputs=FORMS[name]
    )
    expected, found = (one.submit(QUESTION, params) for one in (plain, drafting))
    expected.wait()
    found.wait()
    for a, b in zip(expected.output().outputs, found.output().outputs, strict=True):
        assert a.token_ids == b.token_ids
        assert a.finish_reason == "stop"
        assert fits(name, a.text)
    assert sum(run.stats.drafted for run in expected.runs) == 0


def test_structure_is_drafted_with_certainty(plain, drafting):
    params = SamplingParams(temperature=0, max_tokens=120, structured_outputs=FORMS["schema"])
    request = plain.with_drafter("lookahead:window=0").submit(QUESTION, params)
    request.wait()
    stats = request.runs[0].stats
    assert stats.tau > 1.5
    assert stats.accepted > 10


def answered(plain: LLM, drafting: LLM, params: SamplingParams) -> tuple[Any, Any, Any]:
    """The answers of both to the question, and what the second one's drafts did."""
    requests = [llm.submit(QUESTION, params) for llm in (plain, drafting)]
    for request in requests:
        request.wait()
    a, b = (request.output().outputs[0] for request in requests)
    return a, b, requests[1].runs[0].stats


@pytest.mark.parametrize("mark", ["</think>", "<|im_start|>"])
@pytest.mark.parametrize("kind", ["schema", "regex", "lark", "ebnf"])
def test_a_form_begins_behind_the_mark_of_a_thought(kind, mark, plain, drafting):
    """The mark is text, or a control token; it is written when the thought has no tokens left, and drafted."""
    form = replace(FORMS[kind], after=mark, max_before=9)
    params = SamplingParams(
        temperature=0, max_tokens=100, structured_outputs=form, skip_special_tokens=False
    )
    a, b, stats = answered(plain, drafting, params)
    assert (a.token_ids, a.finish_reason) == (b.token_ids, "stop")
    thought, _, answer = a.text.partition(mark)
    assert thought
    assert fits(kind, answer.lstrip("\n"))
    assert stats.accepted > 0


def test_a_thought_alone_may_have_a_bound(plain, default_model):
    """Behind the mark anything may come, control tokens and the end as well."""
    drafter = "prompt_lookup:ngram_min=1"
    drafting = LLM(str(default_model), drafter=drafter, controller=False, max_model_len=512)
    mark = "</think>"
    form = StructuredOutputsParams(after=mark, max_before=9)
    params = SamplingParams(
        temperature=0, max_tokens=60, structured_outputs=form, skip_special_tokens=False
    )
    a, b, stats = answered(plain, drafting, params)
    closing = plain.tokenizer.encode(mark, bos=False)
    assert a.token_ids == b.token_ids
    assert [*a.token_ids[9 : 9 + len(closing)]] == [*closing]
    assert len(a.token_ids) > 9 + len(closing)
    assert 0 < stats.accepted < stats.drafted


def test_a_thought_may_end_by_itself(plain):
    encode = plain.tokenizer.encode
    state = plain.grammars.start(replace(FORMS["choice"], after="</think>", max_before=50))
    for token in encode("so </th and </think>\n\n"):
        state = state.advance(token)
    assert not state.allows(encode(" so")[0])
    assert state.allows(encode("no")[0])


def test_a_constrained_request_runs_beside_free_ones(drafting):
    free = SamplingParams(temperature=0, max_tokens=24)
    bound = SamplingParams(temperature=0, max_tokens=24, structured_outputs=FORMS["choice"])
    alone = [drafting.chat(QUESTION, params)[0].outputs[0].token_ids for params in (free, bound)]
    both = drafting.chat([QUESTION, QUESTION], [free, bound])
    assert [one.outputs[0].token_ids for one in both] == alone


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"json": "{"}, "not JSON"),
        ({"json": {"type": "flower"}}, "json cannot be used"),
        ({"json": {"$ref": "https://example.org/schema"}}, "json cannot be used"),
        ({"json": {"type": "string", "pattern": "("}}, "json cannot be used"),
        ({"json": {"enum": []}}, "json cannot be used"),
        ({"json": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, "Write anyOf where"),
        ({"regex": "(?=ahead)"}, "regex cannot be used"),
        ({"regex": "["}, "regex cannot be used"),
        ({"grammar": "nothing"}, "grammar cannot be used"),
        ({"grammar": 'root ::= "a" other'}, "grammar cannot be used"),
        ({"json": False}, "json cannot be used: Unsatisfiable"),
        ({"json": {"$schema": "http://json-schema.org/draft-07/schema#", "not": {}}}, "not"),
        ({"json": 7}, "must be a JSON schema"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(plain, form, said):
    with pytest.raises(RequestError, match=said) as error:
        plain.chat(QUESTION, SamplingParams(structured_outputs=StructuredOutputsParams.read(form)))
    assert "\n" not in str(error.value)
    assert not plain.engine.has_work


def test_a_format_that_is_not_known_is_no_rule(plain):
    """And what only looks like one, a property's name or a value, is left."""
    formats = [
        {"type": "string", "format": "password", "maxLength": 9},
        {"$ref": "#/$defs/path"},
        {"type": "string", "format": "date"},
        {"const": {"format": "path"}},
    ]
    names = dict.fromkeys(("format", "b", "c", "d"))
    schema = {
        "type": "object",
        "properties": dict(zip(names, formats, strict=True)),
        "required": [*names],
        "$defs": {"path": {"anyOf": [{"type": "string", "format": "path", "maxLength": 9}]}},
    }
    form = StructuredOutputsParams(json=schema)
    params = SamplingParams(temperature=1, seed=3, max_tokens=200, structured_outputs=form)
    found = json.loads(plain.generate("As JSON: ", params)[0].outputs[0].text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["c"])
    assert found["d"] == {"format": "path"}
    assert jsonschema.Draft202012Validator(schema).is_valid(found)


def test_a_schema_that_is_true_allows_any_value(plain):
    state = plain.grammars.start(StructuredOutputsParams(json=True))
    first = {plain.tokenizer.text_of(int(token))[:1] for token in state.allowed().nonzero()[0]}
    assert {"{", "[", "t", "n", "7"} <= first


@pytest.mark.parametrize("name", FORMS)
def test_one_token_is_allowed_as_in_the_mask(name, plain):
    """Along an answer, for tokens that the mask has and others, at the places where it may end too."""
    state, random = plain.grammars.start(FORMS[name]), np.random.default_rng(0)
    seen = {True: 0, False: 0}
    for _ in range(60):
        mask = state.allowed()
        inside = mask.nonzero()[0]
        asked = {
            *random.integers(len(mask), size=40),
            *random.permutation(inside)[:40],
            *state.eos_ids,
        }
        for token in map(int, asked):
            assert state.allows(token) == mask[token]
            seen[bool(mask[token])] += 1
        ways = (state.advance(int(token)) for token in random.permutation(inside))
        state = next(filter(None, ways), None)
        if state is None:
            break
    assert min(seen.values()) > 5


def test_compiled_grammars_are_kept_and_bounded(plain):
    for i in range(NUM_CACHED + 3):
        plain.grammars.start(StructuredOutputsParams(regex=f"a{{{i + 1}}}"))
    assert len(plain.grammars._known) == NUM_CACHED
    state = plain.grammars.start(StructuredOutputsParams(regex="aaa"))
    mask = state.allowed()
    spelled = {plain.tokenizer.text_of(int(token)) for token in mask.nonzero()[0]}
    assert spelled <= {"a", "aa", "aaa"}


def test_thousands_of_rules_one_in_another_are_no_danger(plain):
    rules = "\n".join(f"r{i}: r{i + 1}" for i in range(4000))
    state = plain.grammars.start(StructuredOutputsParams(grammar=f'start: r0\n{rules}\nr4000: "a"'))
    assert plain.tokenizer.decode(state.forced()) == "a"


def test_a_grammar_beyond_the_limits_of_the_library_is_refused(plain):
    either = {
        f"r{i}": {"anyOf": [{"$ref": f"#/$defs/r{i + 1}"}, {"type": "null"}]} for i in range(1200)
    }
    schema = {"$ref": "#/$defs/r0", "$defs": {**either, "r1200": {"type": "integer"}}}
    with pytest.raises(RequestError, match="json cannot be used: it is too complex"):
        plain.grammars.start(StructuredOutputsParams(json=schema))


def test_an_answer_that_comes_to_the_limits_ends_with_an_error_alone(plain, monkeypatch):
    """It is not an answer that looks complete; others go on."""
    monkeypatch.setattr(grammar_check, "MAX_LEXER_STATES", 1000)
    form = StructuredOutputsParams(regex="[a-z ]{4,600}(very|x)[0-9]{300}")
    params = SamplingParams(temperature=0, max_tokens=200, structured_outputs=form)
    free = SamplingParams(temperature=0, max_tokens=24)
    drafting = plain.with_drafter("lookahead:window=0")
    requests = [drafting.submit(QUESTION, one) for one in (params, free)]
    requests[1].wait()
    with pytest.raises(RequestError, match="too complex in mid-answer: make bounds"):
        requests[0].wait()
    assert len(requests[1].output().outputs[0].token_ids) == 24


def test_a_request_with_slow_masks_rests_while_others_run(default_model, monkeypatch):
    """As long as they take, without drafts; its tokens are the same."""
    drafter = "prompt_lookup:ngram_min=1"
    drafting = LLM(str(default_model), drafter=drafter, controller=False, max_model_len=512)
    form = StructuredOutputsParams(regex="[xyz]{40,60}")
    params = SamplingParams(
        temperature=0, max_tokens=12, structured_outputs=form, frequency_penalty=0.01
    )
    free = SamplingParams(temperature=0, max_tokens=40)
    expected = drafting.submit(QUESTION, params)
    expected.wait()
    assert expected.runs[0].stats.drafted > 0
    allowed = Guided.allowed

    def slow(self: Guided) -> Any:
        time.sleep(0.2)
        return allowed(self)

    monkeypatch.setattr(Guided, "allowed", slow)
    bound, other = (drafting.submit(QUESTION, one) for one in (params, free))
    other.wait()
    assert 0 < len(bound.output().outputs[0].token_ids) < 10
    bound.wait()
    assert bound.runs[0].seq.generated == expected.runs[0].seq.generated
    assert bound.runs[0].stats.drafted == 0


def test_a_matcher_is_handed_to_one_request_alone(plain):
    """Compiled once, copied for each: two threads on one matcher would be an error of the library."""
    form = FORMS["regex"]
    first, second = (plain.grammars.start(form) for _ in range(2))
    kept = plain.grammars._known[form].compiled.result()
    assert len({id(state.matcher) for state in (first, second, kept)}) == 3
    assert not first.matcher.is_error()
    first.matcher.try_consume_tokens([int(first.allowed().argmax())])  # as no request does
    assert (second.allowed() == plain.grammars.start(form).allowed()).all()


def test_what_is_forced_has_no_space_of_sentencepiece_before_it(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", tokenizer="llama")
    tokenizer = open_checkpoint(path).tokenizer()
    assert tokenizer.adds_space
    words = _Vocabulary(tokenizer, tokenizer.vocab_size)
    for text in ("hello", "hello hello", " hello", "", "é"):
        assert b"".join(words.tokens[i] for i in words(text)) == text.encode()
    state: Any = Grammars(tokenizer, tokenizer.vocab_size).start(
        StructuredOutputsParams(grammar='root ::= "hello"')
    )
    said = b""
    while state is not None and not state.allowed()[[*tokenizer.eos_ids]].any():
        token = int(np.flatnonzero(state.allowed())[-1])
        said += tokenizer.token_bytes(token) or b""
        state = state.advance(token)
    assert said == b"hello"
