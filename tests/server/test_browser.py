"""The page as a person uses it, in chromium: `pytest -m browser`, after `pip install axe-playwright-python`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from forerun.hub.prompt_sets import read
from forerun.llm import LLM
from forerun.server.fleet import ModelSource
from tests.server.conftest import running, running_fleet

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
ASKED = "One two three one two three one two"
LOOPING = next(one.turns[0] for one in read() if one.id == "translate-2")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as tool:
        # The machines of tests run as root, where chromium has no sandbox.
        made = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def long_url(default_model) -> Iterator[str]:
    """A server with room for an answer that no test waits out: it repeats itself, undrafted."""
    with running(lambda: LLM(str(default_model), drafter="none", max_model_len=8192)) as (url, _):
        yield url


def send_endless(page) -> None:
    """Ask for an answer that repeats itself to the end of the context, and wait for its first tokens."""
    set_field(page, "temperature", "0")
    send(page, LOOPING, wait=False)
    page.locator(".meter .words").wait_for()


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
    assert [one for one in troubles if "401" not in one and "status of 400" not in one] == []
    context.close()


def send(page, text: str, *, wait: bool = True) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    if wait:
        ended(page)


def ended(page) -> None:
    from playwright.sync_api import expect

    expect(page.locator("#send")).to_have_text("Send", timeout=60_000)
    expect(page.locator(".waiting")).to_have_count(0)


def set_field(page, name: str, value: str) -> None:
    page.click("#open-settings")
    page.fill(f"#settings [name={name}]", value)
    page.click("#settings .main")


def test_an_answer_comes_tinted_with_its_figures_and_stays_after_a_reload(browser, url):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "24")
        page.fill("#prompt", "not")
        page.press("#prompt", "Shift+Enter")
        assert page.input_value("#prompt") == "not\n"
        send(page, ASKED)
        answer = page.locator(".assistant .text")
        text = answer.inner_text()
        assert text
        assert answer.locator("mark.drafted").count() > 0
        words = page.locator(".meter .words").inner_text()
        assert re.search(r"[\d.]+ tok/s", words)
        assert re.search(r"τ [\d.]+ tokens a pass", words)
        assert re.search(
            r"23 tokens after the first in \d+ pass(es)?; plain decoding needs 23", words
        )
        assert "token limit" in page.locator(".assistant .note.why").inner_text()
        page.reload()
        assert page.locator(".user .text").inner_text() == ASKED
        assert answer.inner_text() == text
        assert answer.locator("mark.drafted").count() > 0


def test_a_reload_keeps_the_open_conversation_and_what_is_not_sent(browser, url):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "4")
        send(page, "First")
        page.click("#new")
        send(page, "Second")
        page.click("#chats .title >> text=First")
        page.fill("#prompt", "not sent yet")
        page.reload()
        assert page.locator(".user .text").inner_text() == "First"
        assert page.input_value("#prompt") == "not sent yet"
        page.press("#prompt", "Enter")
        ended(page)
        page.reload()
        assert page.locator(".user .text").last.inner_text() == "not sent yet"
        assert page.input_value("#prompt") == ""


def test_enter_while_an_answer_comes_says_why_nothing_is_sent(browser, long_url):
    with opened(browser, long_url) as page:
        send_endless(page)
        page.fill("#prompt", "and then")
        page.press("#prompt", "Enter")
        assert "press Esc" in page.locator("#trouble").inner_text()
        assert page.input_value("#prompt") == "and then"
        page.keyboard.press("Escape")
        ended(page)
        assert page.locator("#trouble").is_hidden()
        assert page.locator(".turn").count() == 2


def test_an_answer_that_repeats_itself_says_so(browser, url):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "240")
        set_field(page, "temperature", "0")
        send(page, LOOPING)
        text = page.locator(".assistant .text").inner_text()
        assert page.locator(".assistant .repeats").is_visible(), text
        set_field(page, "max_tokens", "6")
        page.click(".assistant >> text=Regenerate")
        ended(page)
        assert page.locator(".assistant .repeats").is_hidden()


def test_stop_regenerate_edit_and_delete(browser, long_url):
    with opened(browser, long_url) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        send_endless(page)
        page.keyboard.press("Escape")
        ended(page)
        assert page.locator(".assistant .note.why").inner_text() == "Stopped."
        set_field(page, "max_tokens", "8")
        page.click(".assistant >> text=Regenerate")
        ended(page)
        assert page.locator(".turn").count() == 2
        assert "7 tokens after the first in" in page.locator(".meter .words").inner_text()
        send(page, "More")
        assert page.locator(".turn").count() == 4
        page.locator(".user >> text=Edit").first.click()
        page.fill(".editor textarea", ASKED)
        page.press(".editor textarea", "Enter")
        ended(page)
        assert page.locator(".turn").count() == 2
        assert page.locator(".user .text").inner_text() == ASKED
        page.click(".assistant >> text=Edit")
        page.fill(".editor textarea", "*mine*")
        page.click(".editor >> text=Save")
        assert page.locator(".assistant em").inner_text() == "mine"
        page.hover("#chats li")
        page.get_by_role("button", name=f"Delete {ASKED}").click()
        assert page.locator(".turn").count() == 0
        assert page.locator("#chats li").count() == 0


def test_an_answer_goes_on_while_another_conversation_is_open(browser, long_url):
    with opened(browser, long_url) as page:
        set_field(page, "max_tokens", "6")
        send(page, "First")
        page.click("#new")
        set_field(page, "max_tokens", "120")
        send(page, "Write a long story of a dragon.", wait=False)
        page.locator(".meter .words").wait_for()
        page.click("#chats .title >> text=First")
        assert page.locator("#send").inner_text() == "Send"
        assert page.locator(".waiting").count() == 0
        set_field(page, "max_tokens", "4")
        send(page, "Second question")
        page.click("#chats .title >> text=dragon")
        ended(page)
        answer = page.locator(".assistant .text")
        assert "Stopped." not in page.locator(".turn").last.inner_text()
        text = answer.inner_text()
        page.reload()
        assert answer.inner_text() == text
        page.click("#chats .title >> text=First")
        assert page.locator(".turn").count() == 4


def test_what_comes_in_the_background_can_be_looked_at_and_stopped(browser, long_url):
    with opened(browser, long_url) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        send_endless(page)
        page.click("#new")
        assert page.locator("#send").inner_text() == "Send"
        page.locator("#chats .title").first.click()
        assert page.locator("#send").inner_text() == "Stop"
        text = page.locator(".assistant .text").inner_text()
        page.wait_for_function(
            "before => document.querySelector('.assistant .text').innerText.length > before.length",
            arg=text,
        )
        page.keyboard.press("Escape")
        ended(page)
        page.click(".assistant >> text=Regenerate")
        page.locator(".meter .words").wait_for()
        page.click("#new")
        page.hover("#chats li")
        page.locator("#chats li .icon").click()
        page.wait_for_timeout(300)
        assert page.locator("#chats li").count() == 0, "it does not come back"


def test_each_conversation_has_its_system_prompt_and_new_ones_the_last(browser, url):
    with opened(browser, url) as page:
        bodies: list[dict] = []
        page.on(
            "request",
            lambda one: bodies.append(one.post_data_json) if one.method == "POST" else None,
        )

        def systems() -> list[str]:
            first = bodies[-1]["messages"][0]
            return [first["content"]] if first["role"] == "system" else []

        set_field(page, "max_tokens", "2")
        send(page, "Old")
        assert systems() == []
        page.click("#new")
        page.click("#open-settings")
        page.fill("#system", "Be brief.")
        page.keyboard.press("Escape")
        send(page, "Newer")
        assert systems() == ["Be brief."]
        page.click("#chats .title >> text=Old")
        page.click("#shade")
        page.click("#open-settings")
        assert page.input_value("#system") == ""
        page.keyboard.press("Escape")
        send(page, "Old again")
        assert systems() == []
        page.click("#new")
        page.click("#open-settings")
        assert page.input_value("#system") == "Be brief."
        page.keyboard.press("Escape")
        page.reload()
        send(page, "Newest")
        assert systems() == ["Be brief."]


def test_an_answer_whose_question_is_gone_can_be_asked_for(browser, url):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "2")
        send(page, "Hi")
        page.evaluate(
            """() => {
              const name = Object.keys(localStorage).find((one) => one.startsWith("forerun.chat."));
              const chat = JSON.parse(localStorage.getItem(name));
              chat.turns = chat.turns.filter((turn) => turn.role === "assistant");
              localStorage.setItem(name, JSON.stringify(chat));
            }"""
        )
        page.reload()
        assert page.locator(".turn").count() == 1
        page.click(".assistant >> text=Regenerate")
        page.locator("#trouble >> text=the conversation is empty").wait_for()


def test_the_key_dialog_can_be_left(browser, llm):
    with running(lambda: llm, api_key="secret") as (url, _), opened(browser, url) as page:
        page.locator("#ask-key").wait_for()
        page.keyboard.press("Escape")
        page.locator("#model >> text=No key").wait_for()
        page.wait_for_timeout(300)
        assert not page.locator("#ask-key").is_visible()
        send(page, "Hi", wait=False)
        page.locator("#ask-key").wait_for()
        page.keyboard.press("Escape")
        page.locator("#trouble").wait_for()
        assert page.input_value("#prompt") == "Hi"
        page.press("#prompt", "Enter")
        page.fill("#key", "secret")
        page.press("#key", "Enter")
        ended(page)
        assert page.locator(".assistant .text").inner_text()
        page.locator("#model >> text=tiny").wait_for()


def test_settings_reach_the_server(browser, url):
    with opened(browser, url) as page:
        bodies: list[dict] = []
        page.on(
            "request",
            lambda one: bodies.append(one.post_data_json) if one.method == "POST" else None,
        )
        set_field(page, "max_tokens", "4")
        set_field(page, "temperature", "0.5")
        page.click("#open-settings")
        page.fill("#system", "Be brief.")
        page.uncheck("#drafting")
        page.keyboard.press("Escape")
        send(page, "Hi")
        (body,) = bodies
        assert (body["max_tokens"], body["temperature"]) == (4, 0.5)
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert body["speculative"] == {"drafter": "none"}
        assert page.locator("mark.drafted:visible").count() == 0
        assert "no drafting" in page.locator(".meter .words").inner_text()
        set_field(page, "temperature", "-1")
        assert page.locator("#settings").is_visible()  # the browser says what is wrong
        page.keyboard.press("Escape")
        send(page, "Hi")
        assert len(bodies) == 2
        assert "temperature" not in bodies[-1]


def test_what_is_written_is_never_html(browser, url):
    hostile = (
        "<img src=x onerror=alert(1)><script>alert(2)</script> [a](javascript:alert(3)) "
        '[b](https://x.org/"onmouseover="alert(4)) `<b>` **<i>x</i>**'
    )
    with opened(browser, url) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        set_field(page, "max_tokens", "2")
        send(page, hostile)
        page.click(".assistant >> text=Edit")
        page.fill(".editor textarea", hostile + "\n```html\n<script>alert(5)</script>\n```\n")
        page.click(".editor >> text=Save")
        page.wait_for_timeout(200)
        for made in ("img", "script", "i", "[onerror]", "[onmouseover]"):
            assert page.locator(f"#log {made}").count() == 0
        links = page.locator("#log a").evaluate_all("all => all.map((one) => one.href)")
        assert all(link.startswith("https://x.org/") for link in links)
        assert "<script>alert(5)</script>" in page.locator("pre code").inner_text()
        assert page.locator(".assistant strong").inner_text() == "<i>x</i>"
        assert page.locator(".code button").inner_text() == "Copy"


def test_the_key_is_asked_for_once(browser, llm):
    with running(lambda: llm, api_key="secret") as (url, _), opened(browser, url) as page:
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        page.locator("text=does not take that key").wait_for()
        page.fill("#key", "secret")
        page.press("#key", "Enter")
        page.locator("#model >> text=tiny").wait_for()
        page.reload()
        page.locator("#model >> text=tiny").wait_for()
        assert not page.locator("#ask-key").is_visible()
        set_field(page, "max_tokens", "2")
        send(page, "Hi")
        assert page.locator(".assistant .text").inner_text()


def test_dark_light_and_a_phone(browser, url):
    def ground(page) -> str:
        return page.locator("body").evaluate("one => getComputedStyle(one).backgroundColor")

    with opened(browser, url, color_scheme="dark") as page:
        dark = ground(page)
        page.click("#theme")
        light = ground(page)
        assert dark != light
        page.reload()
        assert ground(page) == light
    phone = {"width": 390, "height": 844}
    with opened(browser, url, viewport=phone, is_mobile=True, has_touch=True) as page:
        assert not page.locator("#side").is_visible()
        page.tap("#open-side")
        page.locator("#new").wait_for()
        page.tap("#close-side")
        set_field(page, "max_tokens", "4")
        send(page, "word" * 200)
        widths = "one => [one.scrollWidth, one.clientWidth]"
        scroll, client = page.locator("html").evaluate(widths)
        assert scroll == client == 390
        for _ in range(4):
            send(page, "word\n" * 20)
        assert page.locator("html").evaluate("one => one.scrollHeight") == 844  # the log scrolls


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


def test_thoughts_fold_away_and_are_not_sent_back(browser, url):
    with opened(browser, url) as page:
        bodies = answer_with(page, streamed(THINKS))
        send(page, "2 + 2?")
        said, thought = page.locator(".assistant .text"), page.locator(".assistant .thought")
        assert said.inner_text() == "Four it is."
        assert said.locator("mark.drafted").all_inner_texts() == [" it is."]
        assert thought.locator("summary").inner_text() == "Thoughts"
        assert not thought.locator(".md").is_visible()
        thought.locator("summary").click()
        assert thought.locator(".md").inner_text() == "Hm, sums."
        send(page, "And 3 + 3?")
        assert [one["content"] for one in bodies[-1]["messages"]] == [
            *("2 + 2?", "Four it is.", "And 3 + 3?")
        ]
        page.reload()
        assert page.locator(".assistant .thought").count() == 2
        assert said.first.inner_text() == "Four it is."


def test_the_model_is_chosen_among_all_that_are_served(browser, llm):
    sources = [ModelSource("one", lambda: llm), ModelSource("two", lambda: llm)]
    with running_fleet(sources) as (url, _), opened(browser, url) as page:
        bodies: list[dict] = []
        page.on(
            "request",
            lambda one: bodies.append(one.post_data_json) if one.method == "POST" else None,
        )
        page.locator("#models").wait_for()
        assert page.locator("#models option").all_inner_texts() == ["one", "two"]
        set_field(page, "max_tokens", "2")
        send(page, "Hi")
        page.select_option("#models", "two")
        page.reload()
        page.locator("#models").wait_for()
        send(page, "Hi")
        assert [one["model"] for one in bodies] == ["one", "two"]
        assert page.locator("#models").input_value() == "two"


def kept(page) -> list[list[str]]:
    """The user's words in each conversation that the browser keeps."""
    return page.evaluate(
        """() => Object.keys(localStorage).filter((name) => name.startsWith("forerun.chat."))
           .map((name) => JSON.parse(localStorage[name]).turns
             .filter((turn) => turn.role === "user").map((turn) => turn.text.slice(0, 40)))"""
    )


@pytest.mark.parametrize("size", [6_000_000, 3_900_000])
def test_nothing_is_deleted_for_a_message_that_finds_no_room(browser, url, size):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "2")
        page.evaluate("localStorage.setItem('other', 'x'.repeat(2_000_000))")
        for text in ("First", "Second"):
            page.click("#new")
            send(page, text)
        page.click("#new")
        answer_with(page, streamed([("No", {"content": "No"})]))
        page.fill("#prompt", "x" * size)
        page.press("#prompt", "Enter")
        page.locator("#trouble").wait_for()
        ended(page)
        assert "no room left" in page.locator("#trouble").inner_text()
        assert sorted(kept(page)) == [["First"], ["Second"]]
        page.reload()
        assert page.locator("#chats li").count() == 2


def test_two_tabs_with_one_conversation_keep_the_turns_of_both(browser, url):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "2")
        send(page, "One")
        other = page.context.new_page()
        other.goto(url)
        other.locator("#chats .title").first.click()
        send(other, "Two")
        page.locator(".user .text >> text=Two").wait_for()
        send(page, "Three")
        other.locator(".user .text >> text=Three").wait_for()
        assert kept(page) == [["One", "Two", "Three"]]
        other.locator(".user >> text=Edit").last.click()
        other.fill(".editor textarea", "Four")
        other.press(".editor textarea", "Enter")
        ended(other)
        page.locator(".user .text >> text=Four").wait_for()
        assert page.locator(".user .text").all_inner_texts() == ["One", "Two", "Four"]
        assert page.locator(".turn").count() == 6


def test_turns_that_two_tabs_add_at_once_are_both_kept(browser, url):
    """The answers come when both have asked."""
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "200")
        set_field(page, "temperature", "0")
        send(page, "One")
        other = page.context.new_page()
        other.goto(url)
        other.locator("#chats .title").first.click()
        send(page, "Two, and a long story", wait=False)
        send(other, "Three, and a long story", wait=False)
        ended(page)
        ended(other)
        assert [sorted(one) for one in kept(page)] == [
            ["One", "Three, and a long story", "Two, and a long story"]
        ]
        page.reload()
        assert page.locator(".turn").count() == 6
        assert all(page.locator(".assistant .text").all_inner_texts())


def test_cells_of_a_table_keep_their_words_whole(browser, url):
    table = f"| Language | Year | Note |\n|---|---|---|\n| Python | 1991 | {'much to say ' * 30}|\n"
    lines = """all => all.map((one) => {
      const range = document.createRange();
      range.selectNodeContents(one);
      return new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size;
    })"""
    with opened(browser, url, viewport={"width": 390, "height": 844}) as page:
        answer_with(page, streamed([(table, {"content": table})]))
        send(page, "table")
        assert page.locator("#turns th").evaluate_all(lines) == [1, 1, 1]
        assert page.locator("html").evaluate("one => one.scrollWidth") == 390


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


def test_an_answer_is_shown_in_its_forms_and_directions(browser, url):
    with opened(browser, url) as page:
        answer_with(page, streamed([(FORMS, {"content": FORMS})]))
        page.fill("#prompt", "مرحبا")
        direction = "one => getComputedStyle(one).direction"
        assert page.locator("#prompt").evaluate(direction) == "rtl"
        send(page, "Show")
        assert page.locator("#prompt").evaluate(direction) == "ltr"
        assert page.locator(".md td").all_inner_texts() == ["a | b", "either"]
        boxes = page.locator(".md .task input")
        assert [box.is_checked() for box in boxes.all()] == [True, False]
        assert page.locator(".md p math msubsup").text_content() == "a12"
        unread = ["\\frac{", "\\href{javascript:alert(1)}{x}"]
        assert page.locator(".md code.math").all_inner_texts() == unread
        assert page.locator(".md .wide math[display=block] mfrac").count() == 1
        assert page.locator(".md math a, .md math [href]").count() == 0
        assert page.locator(".md .word-keyword").all_inner_texts() == ["def", "return"]
        assert page.locator(".md .word-comment").inner_text() == "# twice"
        assert (
            page.locator("pre code").inner_text() == "def double(x):  # twice\n    return 2 * x\n"
        )
        assert page.locator(".md > p").last.evaluate(direction) == "rtl"
        assert page.locator(".md > p").first.evaluate(direction) == "ltr"


def test_who_cannot_see_the_page_is_told_what_happens(browser, url):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "8")
        page.evaluate(
            """() => { window.said = []; new MutationObserver(() =>
            window.said.push(document.getElementById("said").textContent)).observe(
            document.getElementById("said"), {childList: true}) }"""
        )
        send(page, ASKED)
        assert page.evaluate("window.said") == ["The answer begins.", "The answer has ended."]
        assert page.get_by_role("button", name=f"Delete {ASKED}").count() == 1
        assert page.get_by_role("heading", level=1).all_inner_texts() == [ASKED]
        assert page.title() == f"{ASKED} · forerun"
        assert page.locator("#turns").get_attribute("aria-busy") == "false"
        assert page.locator(".assistant mark:not([role=presentation])").count() == 0
        assert re.fullmatch(r"\d+ of 4,096|\d+ of [\d,]+", page.locator("#fill").inner_text())
        words = page.locator(".meter .words").inner_text()
        assert re.search(r"first token after [\d.]+ s", words)
        page.click("#shade")
        assert page.locator("#shade").get_attribute("aria-pressed") == "false"


def test_a_message_that_is_refused_comes_back_into_the_field(browser, url):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "4")
        send(page, "Hi")
        refused = {"error": {"message": "the context is full", "type": "x", "code": None}}
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=refused))
        page.on("console", lambda line: None)
        page.fill("#prompt", "A long one")
        page.press("#prompt", "Enter")
        page.locator("#trouble").get_by_text("the context is full").wait_for()
        assert page.input_value("#prompt") == "A long one"
        assert page.locator("#turns li").count() == 2
        page.reload()
        assert page.locator("#turns li").count() == 2


def test_an_answer_that_was_stopped_goes_on_in_its_place(browser, long_url):
    with opened(browser, long_url) as page:
        send_endless(page)
        page.keyboard.press("Escape")
        ended(page)
        said = page.locator(".assistant .text")
        begun = said.inner_text().strip()
        page.click(".assistant >> text=Go on")
        page.wait_for_function(
            "length => document.querySelector('.assistant .text').textContent.length > length + 20",
            arg=len(begun),
        )
        page.keyboard.press("Escape")
        ended(page)
        assert said.inner_text().startswith(begun[:-10])
        assert page.locator(".turn").count() == 2
        page.reload()
        assert page.locator(".assistant >> text=Go on").is_visible()


def test_an_answer_goes_on_after_a_lost_connection_thoughts_and_all(browser, url):
    lost = streamed(THINKS).rpartition('data: {"choices": [{"index": 0, "delta": {}')[0]
    rest = streamed([(" Or so.", {"content": " Or so."})])
    with opened(browser, url) as page:
        bodies = answer_with(page, lost, rest)
        send(page, "2 + 2?")
        assert "connection was lost" in page.locator(".assistant .note.why").inner_text()
        page.click(".assistant >> text=Go on")
        ended(page)
        assert page.locator(".assistant .text").inner_text() == "Four it is. Or so."
        assert page.locator(".assistant .note.why").is_hidden()
        assert page.locator(".assistant >> text=Go on").is_hidden()
        assert bodies[1]["continue_final_message"] is True
        assert bodies[1]["messages"] == [
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "Four it is.", "reasoning_content": "Hm, sums."},
        ]
        assert "continue_final_message" not in bodies[0]


def test_a_reload_in_mid_answer_keeps_it_and_it_goes_on(browser, long_url):
    with opened(browser, long_url) as page:
        send_endless(page)
        page.reload()
        assert page.locator(".assistant .note.why").inner_text() == "Stopped."
        assert page.locator(".assistant >> text=Go on").is_visible()


def test_what_is_edited_or_made_anew_stands_beside_what_was(browser, url):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "4")
        for text in ("One", "Two"):
            send(page, text)
        page.locator(".user >> text=Edit").first.click()
        page.fill(".editor textarea", "Other")
        page.press(".editor textarea", "Enter")
        ended(page)
        said = page.locator(".user .text")
        assert said.all_inner_texts() == ["Other"]
        assert page.locator(".versions:visible").inner_text() == "‹2 / 2›"
        assert page.get_by_label("Newer version").first.is_disabled()
        page.get_by_label("Older version").first.click()
        assert said.all_inner_texts() == ["One", "Two"]
        page.reload()
        assert said.all_inner_texts() == ["One", "Two"]
        old = page.locator(".assistant .text").last.inner_text()
        page.locator(".assistant >> text=Regenerate").last.click()
        ended(page)
        shown = page.locator(".assistant .versions")
        assert shown.last.inner_text() == "‹2 / 2›"
        shown.last.get_by_label("Older version").click()
        assert page.locator(".assistant .text").last.inner_text() == old
        assert page.locator(".turn").count() == 4
        page.get_by_label("Newer version").first.click()
        assert said.all_inner_texts() == ["Other"]


def test_a_conversation_that_was_kept_before_turns_branched_is_shown_whole(browser, url):
    turns = [
        *({"role": role, "text": f"{role} {n}", "drafted": []} for n in (1, 2) for role in ROLES)
    ]
    with opened(browser, url) as page:
        page.evaluate(
            "chat => localStorage.setItem('forerun.chat.old', JSON.stringify(chat))",
            {"id": "old", "system": "", "time": 1, "turns": turns},
        )
        page.reload()
        page.click("#chats .title")
        assert page.locator(".turn .text").all_inner_texts() == [one["text"] for one in turns]


ROLES = ("user", "assistant")


def test_files_that_are_dropped_are_read_if_they_are_texts(browser, url):
    drop = """files => {
      const data = new DataTransfer();
      for (const [name, bytes] of files) data.items.add(new File([new Uint8Array(bytes)], name));
      document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
    }"""
    with opened(browser, url) as page:
        page.fill("#prompt", "What is it?")
        page.evaluate(drop, [["a.py", [*b"x = 1\r\n```\n"]], ["b.txt", [*"ü".encode()]]])
        page.wait_for_function("() => document.getElementById('prompt').value.includes('b.txt')")
        expected = "What is it?\n\na.py:\n````py\nx = 1\n```\n````\n\nb.txt:\n```txt\nü\n```\n\n"
        assert page.input_value("#prompt") == expected
        assert page.locator("#trouble").is_hidden()
        page.evaluate(drop, [["c.png", [137, 80, 78, 71, 0, 255]]])
        page.locator("#trouble").get_by_text("c.png is not text").wait_for()
        page.set_input_files(
            "#file", {"name": "d.txt", "mimeType": "text/plain", "buffer": b"x" * 2_000_000}
        )
        page.locator("#trouble").get_by_text("d.txt has 1.9 MiB: files of up to 1 MiB").wait_for()
        assert page.input_value("#prompt") == expected


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(browser, url, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    code = "```python\nclass A:\n    'text'\n    x = 1  # one\n    def f(self): return None\n```\n"
    forms = FORMS + code
    pieces = [(sign, {"content": sign}) for sign in re.findall(r".{1,9}", forms, re.DOTALL)]
    size = {"width": width, "height": 800}

    def findings(page) -> list[str]:
        found = axe.Axe().run(page).response["violations"]
        return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]

    with opened(browser, url, color_scheme=scheme, viewport=size, bypass_csp=True) as page:
        assert findings(page) == []
        answer_with(page, streamed([*THINKS[:4], *pieces]))
        send(page, "Show")
        send(page, "Show " * 2000)
        page.locator(".thought summary").first.click()
        page.locator(".assistant >> text=Regenerate").last.click()
        ended(page)
        assert findings(page) == []
        page.locator(".user >> text=Edit").first.click()
        assert findings(page) == []
        page.click("#open-settings")
        assert findings(page) == []
        page.keyboard.press("Escape")
        if width < 800:
            page.click("#open-side")
            page.locator("#new").wait_for()
            assert findings(page) == []
