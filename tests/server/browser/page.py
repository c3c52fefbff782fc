"""What a person does on the page: open it, write, send, set a field; and answers that are made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from forerun.hub.prompt_sets import read

ASKED = "One two three one two three one two"


LOOPING = next(one.turns[0] for one in read() if one.id == "translate-2")


@contextmanager
def opened(browser, url: str, **settings: object) -> Iterator:
    """The page in a profile of its own; an error in it fails the test."""
    context = browser.new_context(**settings)
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda line: troubles.append(line.text) if line.type == "error" else None)
    page.on("request", lambda one: None if one.url.startswith(url) else troubles.append(one.url))
    page.goto(url)
    yield page
    expected = ("401", "status of 400", "status of 502")
    assert [one for one in troubles if not any(each in one for each in expected)] == []
    context.close()


def send(page, text: str, *, wait: bool = True) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    if wait:
        ended(page)


def ended(page) -> None:
    expect(page.locator("#send")).to_have_text("Send", timeout=60_000)
    expect(page.locator(".waiting")).to_have_count(0)


def set_field(page, name: str, value: str) -> None:
    page.click("#open-settings")
    page.fill(f"#settings [name={name}]", value)
    page.click("#settings .main")


def send_endless(page) -> None:
    """Ask for an answer that repeats itself to the end of the context, and wait for its first tokens."""
    set_field(page, "temperature", "0")
    send(page, LOOPING, wait=False)
    page.locator(".meter .words").wait_for()


KEPT = """async () => {
  const asked = (request) => new Promise((done) => { request.onsuccess = () => done(request.result); });
  const db = await asked(indexedDB.open("forerun"));
  const read = (name) => asked(db.transaction(name).objectStore(name).getAll());
  const [heads, turns] = [await read("heads"), await read("turns")];
  db.close();
  const said = ({id}) => turns.filter((one) => one.chat === id && one.role === "user");
  const texts = (all) => all.sort((a, b) => a.made - b.made).map((turn) => turn.text.slice(0, 40));
  return heads.map((head) => texts(said(head)));
}"""


def kept(page) -> list[list[str]]:
    """The user's words in each conversation that the browser keeps."""
    return page.evaluate(KEPT)


THINKS = [
    ("<think>", {}),
    ("Hm, ", {"reasoning_content": "Hm, "}),
    ("sums.", {"reasoning_content": "sums."}),
    ("</think>\n\n", {}),
    ("Four", {"content": "Four"}),
    (" it is.", {"content": " it is."}),
]
"""Tokens as a thinking model writes them, and what the server makes of each."""


def streamed(parts: list[tuple[str, dict]]) -> str:
    """A stream of these tokens, every second of which was drafted; a ping comes between."""
    found = ": ping\n\n"
    for number, (text, delta) in enumerate(parts):
        pieces = [{"text": text, "from_draft": number % 2 == 1}]
        choice = {"index": 0, "delta": delta, "finish_reason": None, "pieces": pieces}
        found += f"data: {json.dumps({'choices': [choice]})}\n\n: ping\n\n"
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return found + f"data: {json.dumps({'choices': [end]})}\n\ndata: [DONE]\n\n"


def answer_with(page, *streams: str) -> list[dict]:
    """Let these streams, one after the other, be the server's answers; return the bodies of its requests."""
    bodies: list[dict] = []

    def answer(route) -> None:
        body = streams[min(len(bodies), len(streams) - 1)]
        bodies.append(route.request.post_data_json)
        route.fulfill(status=200, content_type="text/event-stream; charset=utf-8", body=body)

    page.route("**/v1/chat/completions", answer)
    return bodies


FORMS = """| a | b |
|---|---|
| `a \\| b` | either |

- [x] done
- [ ] open

So \\(a_1^2\\) is it, and neither \\(\\frac{\\) nor \\(\\href{javascript:alert(1)}{x}\\) is:
$$
\\sum_{i=1}^n i = \\frac{n(n+1)}{2}
$$

- A list of code:
  ```python
  def double(x):  # twice
      return 2 * x
  ```

مرحبا بكم في العالم.
"""


def expect(locator):
    """What playwright expects of a locator, waiting for it; it is imported where a browser runs."""
    from playwright.sync_api import expect as expected

    return expected(locator)
