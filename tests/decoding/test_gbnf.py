"""GBNF as llama.cpp defines it: which texts are whole, by grammars of the shapes that are published."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun.core.errors import RequestError
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.gbnf import is_gbnf, translated
from forerun.decoding.guidance import Grammars
from forerun.text.tokenizer import Tokenizer
from forerun.weights.checkpoint import open_checkpoint

pytest.importorskip("llguidance", reason="structured output needs llguidance")

SUM = r"""
# sums, one a line
root ::= (sum "=" blank value "\n")+
sum  ::= value ([-+*/] value)*
value ::= name | number | "(" blank sum ")" blank   # brackets make it recursive
name ::= [a-z] [a-z0-9_]* blank
number ::= [0-9]+ blank
blank ::= [ \t]*
"""
DOCUMENT = r"""
root ::= object
any ::= object | list | text | number | ("true" | "false" | "null") gap
object ::=
  "{" gap (
     text ":" gap any
     ("," gap text ":" gap any)*
  )? "}" gap
list ::= "[" gap ( any ("," gap any)* )? "]" gap
text ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" gap
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? gap
gap ::= | " " gap
"""
GAME = r"""
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
move ::= (pawn | piece | "O-O" "-O"?) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
"""
PROGRAM = r"""
root ::= function*
function ::= type name "(" (type name)? ")" "{" statement* "}"
type ::= "int " | "float "
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::= ( name "=" sum ";" ) |
  ( "while" "(" sum ")" "{" statement* "}" ) | ( "/*" ([^*] | "*" [^/])* "*/" )
sum ::= (name | [0-9]+ | "(" sum ")") (("+" | "-") sum)?
"""
WHOLE = [
    ('root ::= word "ing"\nword ::= [a-z]+', ["running", "inging"], ["ing", "runn", "Running"]),
    ('root ::= n "0"\nn ::= [0-9]+', ["10", "1000"], ["0", "101"]),
    (SUM, ["x=1\n", "x*(y+12) =2\na=b\n", "((a))=1\n"], ["x=1", "x*(y=2\n", "=1\n"]),
    (DOCUMENT, ['{"a": [1, -2.5e3, {"b\\n": null}], "é😀": "\\u00e9"} '], ['{"a": }', "[1]", '{"a" 1}']),
    (GAME, ["1. e4 e5\n2. Nf3 Nc6+\n", "1. exd8=Q O-O-O\n"], ["1. e4\n", "1. e9 e5\n"]),
    (PROGRAM, ["int f(int x){y=(x+1);while(y){}/* a * b */}", ""], ["int f({}", "int f(){/* */ }"]),
    ('root ::= item+\nitem ::= "- " [^\\r\\n\\u2028\\x85]+ "\\n"', ["- a\n- b c\n"], ["- \n", "a\n"]),
    ("root ::= ([ぁ-ゟ] | kanji | [、-〾])+\nkanji ::= [一-鿿]", ["日本語、は"], ["日本go"]),
    (r'root ::= "\x41\u00e9\U0001F600\"\\" [\]\-\\^x-z] . .', ['Aé😀"\\-\n.', 'Aé😀"\\ybb'], ['Aé😀"\\abb']),
    ('root ::= "(" root ")" | "(" [a-c]{2} [-+]{0,2} [d]{1,} ")"', ["((ab-d))", "(ccd)"], ["(abd)]", "(ad)"]),
    ('start ::= "no"\nroot ::= Some_Rule-2\n\n  | "b"\nSome_Rule-2::="a"', ["a", "b"], ["no"]),
    ('root ::= <|im_start|> "x" | !<|im_end|> "y"', ["<|im_start|>x", "zy"], ["<|im_end|>y", "zx"]),
    ('root ::= "" | "a" []? ("" | "b")* | "e" "n"*', ["", "abb", "en", "enn"], ["b"]),
    ('root ::= "a"{2,\n 3} "b"{1\t,\t2}', ["aab", "aaabb"], ["ab", "aaaab"]),
    ('root ::= "a"{0} "b" "c"{0,0}', ["b"], ["ab", "bc"]),
    ('root ::= "(" root ")" | "a"{0} "b" "c"{0,0}', ["b", "((b))"], ["ab", "(bc)"]),
    ('root ::= "(" root ")" | "a"{2,\n 3}', ["aa", "(aaa)"], ["a", "(aaaa)"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(default_model) -> Tokenizer:
    return open_checkpoint(default_model).tokenizer()


@pytest.fixture(scope="module")
def grammars(tokenizer) -> Grammars:
    return Grammars(tokenizer, tokenizer.vocab_size)


@pytest.fixture(scope="module")
def is_whole(grammars, tokenizer) -> Callable[[str, str], bool]:
    def is_whole(grammar: str, text: str) -> bool:
        """Whether a text, one token a letter where that is possible, may be an answer."""
        state = grammars.start(StructuredOutputsParams(grammar=grammar))
        parts = re.findall(r"<\|.*?\|>|.", text, re.DOTALL)
        for token in [token for part in parts for token in tokenizer.encode(part, bos=False)]:
            # The library insists on the tokenizer's own tokens where bytes are forced.
            if state.matcher.try_consume_tokens([token]) != 1:
                return False
        return state.matcher.is_accepting()

    return is_whole


@pytest.mark.parametrize(("grammar", "whole", "others"), WHOLE)
def test_a_grammar_matches_whole_texts_and_no_others(is_whole, grammar, whole, others):
    assert [text for text in whole if not is_whole(grammar, text)] == []
    assert [text for text in others if is_whole(grammar, text)] == []


classes = st.sampled_from(["a", "ab", "^a", "b-d", "a-cx"]).map(lambda chars: f"[{chars}]")
atoms = st.one_of(classes, st.sampled_from(['"ab"', '"b"', '"abc"', '""']))
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{1,}"])).map(
            lambda both: f"({both[0]}){both[1]}"
        ),
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: f"({' | '.join(some)})"),
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=40)
@given(patterns, st.text("abcdx", max_size=6))
@example("(([a] | [^a]))*", "")  # any token may come, and each of its characters in two ways
def test_with_recursion_and_without_it_means_the_same(is_whole, pattern, text):
    """By the expression, by rules over characters, and by Python's own expressions."""
    wanted = re.fullmatch(pattern.replace('"', "").replace(" ", ""), text) is not None
    assert is_whole(f"root ::= {pattern}", text) == wanted
    recursive = f'root ::= {pattern} | "<" root ">"'
    assert translated(recursive, lambda text: None)[0] is None
    assert is_whole(recursive, text) == wanted


def test_texts_of_a_recursive_grammar_are_drafted_where_they_are_forced(grammars, tokenizer):
    form = StructuredOutputsParams(grammar='root ::= "[" root "]" | "hello world" | "1"')
    (letter,) = tokenizer.encode("h", bos=False)
    state = grammars.start(form).advance(letter)
    assert tokenizer.decode(state.forced()) == "ello world"


def test_answers_of_the_grammar_of_documents_are_documents(grammars, tokenizer):
    random = np.random.default_rng(0)
    state, ids = grammars.start(StructuredOutputsParams(grammar=DOCUMENT)), []
    while state is not None and len(ids) < 200 and not state.matcher.is_accepting():
        allowed = np.flatnonzero(state.allowed())
        ids.append(int(random.choice(allowed[allowed < 200])))
        state = state.advance(ids[-1])
    assert isinstance(json.loads(tokenizer.decode(ids)), dict)


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('root ::= "a" other', "no rule 'other'"),
        ('main ::= "a"', "no rule 'root'"),
        ('root ::= "a', "the end"),
        ('root ::= "a" )', "line 1"),
        ('root ::= ("a"\n\n', "line 3"),
        (r'root ::= "\q"', "escaped sign"),
        ("root ::= [z-a]", "no range"),
        ("root ::= [a]{3,2}", "no {3,2}"),
        ("root ::= <no such token>", "one token of the model"),
        (r'root ::= "\ud800"', "code of a character"),
    ],
)
def test_what_is_no_gbnf_is_refused_with_its_place(grammars, grammar, said):
    with pytest.raises(RequestError, match=re.escape(said)) as error:
        grammars.start(StructuredOutputsParams(grammar=grammar))
    assert str(error.value).startswith("grammar cannot be used")
    assert "\n" not in str(error.value)


def test_rules_that_call_others_twice_do_not_grow_without_bounds(grammars):
    rules = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40))
    expression, lark = translated(f'root ::= r0\n{rules}\nr40 ::= "a"', lambda text: None)
    assert (expression, len(lark) < 2000) == (None, True)


def test_lark_is_told_from_gbnf():
    assert not is_gbnf('start: "yes ::= no" /x/')
    assert not is_gbnf("%llguidance {}\nstart: A")
    assert is_gbnf('# a comment\nstart ::= "a"\nroot ::= start')
