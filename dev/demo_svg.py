"""Record what `forerun demo` shows as the animated docs/demo.svg: `python -m dev.demo_svg`.

Both answers appear at the pace at which they came, slowed down equally; drafted tokens are tinted.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

from forerun import LLM, SamplingParams
from forerun.hub.prompt_sets import read

TARGET = Path(__file__).parent.parent / "docs" / "demo.svg"
PROMPT_ID, MAX_TOKENS = "summary-1", 120
SLOWER = 8
COLUMNS, COLUMN, LINE, MARGIN = 92, 8.4, 20, 20
STYLE = """
text { font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d8dee9; white-space: pre }
.drafted { fill: #14532d } .box { fill: #a3d9a5 } .dim { fill: #8a94a6 } .bold { font-weight: bold }
.late { opacity: 0; animation: show 0.01s forwards } @keyframes show { to { opacity: 1 } }
"""


@dataclass(frozen=True)
class Letter:
    """A character of an answer, when it came, and whether it was drafted."""

    text: str
    seconds: float
    is_drafted: bool


def recorded(llm: LLM, prompt: str) -> list[Letter]:
    """An answer, letter by letter; time runs from the first token."""
    letters, start = [], None
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    for event in llm.stream([{"role": "user", "content": prompt}], params):
        start = start or time.perf_counter()
        now = time.perf_counter() - start
        letters += [Letter(c, now, p.from_draft) for p in event.pieces for c in p.text]
    return letters


def lines(letters: list[Letter]) -> Iterator[list[Letter]]:
    """The letters, wrapped between words."""
    rest = iter(letters)
    text = "".join(letter.text for letter in letters)
    for line in textwrap.wrap(text, COLUMNS, drop_whitespace=False, replace_whitespace=False):
        yield [next(rest) for _ in line]


def drawn(letters: list[Letter], top: float) -> Iterator[str]:
    """An answer's SVG, each piece hidden until its time."""
    for row, line in enumerate(lines(letters)):
        y, column = top + row * LINE, 0
        for (seconds, is_drafted), same in groupby(line, lambda x: (x.seconds, x.is_drafted)):
            piece = "".join(letter.text for letter in same)
            x, width = MARGIN + column * COLUMN, len(piece) * COLUMN
            column += len(piece)
            yield f'<g class="late" style="animation-delay:{seconds * SLOWER:.2f}s">'
            if is_drafted:
                yield f'<rect class="box" x="{x:.1f}" y="{y - 15}" width="{width:.1f}" height="19"/>'
            style = ' class="drafted"' if is_drafted else ""
            yield f'<text{style} x="{x:.1f}" y="{y}" textLength="{width:.1f}">{escape(piece)}</text></g>'


def picture(plain: list[Letter], drafted: list[Letter], drafter: str, told: str) -> str:
    """The whole SVG: a title, both answers, the speed-up when the second has ended."""
    body, y = [f'<text class="dim" x="{MARGIN}" y="{MARGIN + 10}">{escape(told)}</text>'], 66.0
    for name, letters in ((f"drafting with {drafter}", drafted), ("plain decoding", plain)):
        body.append(f'<text class="bold" x="{MARGIN}" y="{y}">{escape(name)}</text>')
        end = letters[-1].seconds
        seconds = f'<g class="late" style="animation-delay:{end * SLOWER:.2f}s">'
        body.append(f'{seconds}<text class="dim" x="{MARGIN + 260}" y="{y}">{end:.2f} s</text></g>')
        body += drawn(letters, y + LINE + 6)
        y += (len([*lines(letters)]) + 2) * LINE + 16
    width = 2 * MARGIN + COLUMNS * COLUMN
    names = 'xmlns="http://www.w3.org/2000/svg" xml:space="preserve"'
    head = f'<svg {names} viewBox="0 0 {width:.0f} {y:.0f}" width="{width:.0f}">'
    frame = f'<rect width="{width:.0f}" height="{y:.0f}" rx="8" fill="#1f2430"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", frame, *body, "</svg>\n"])


def main() -> None:
    """Answer the demo's prompt with plain decoding and with drafting, and draw both."""
    prompt = next(prompt.turns[0] for prompt in read() if prompt.id == PROMPT_ID)
    llm = LLM(max_num_seqs=1)
    plain_llm = llm.with_drafter("none")
    for each in (plain_llm, llm):  # the first requests are slower
        for text in ("Say hello.", "Name three rivers."):
            recorded(each, text)
    plain, drafted = recorded(plain_llm, prompt), recorded(llm, prompt)
    assert [a.text for a in plain] == [b.text for b in drafted]
    speedup = plain[-1].seconds / drafted[-1].seconds
    told = (
        f"{llm.path.stem} summarises a text on {llm.model.num_threads} CPU threads, "
        f"{SLOWER}x slow motion: {speedup:.1f}x as fast"
    )
    TARGET.write_text(picture(plain, drafted, llm.drafter_spec.name, told), encoding="utf-8")
    print(told)


if __name__ == "__main__":
    main()
