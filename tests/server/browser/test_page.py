"""The page around the answers: settings, keys, models, files, looks, and who cannot see it; `pytest -m browser`."""

from __future__ import annotations

import re

import pytest

from forerun.server.models import ModelSource
from tests.server.browser.page import (
    ASKED,
    FORMS,
    THINKS,
    answer_with,
    ended,
    expect,
    opened,
    send,
    set_field,
    streamed,
)
from tests.server.conftest import running, running_models

pytestmark = pytest.mark.browser


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


def test_the_model_is_chosen_among_all_that_are_served(browser, llm):
    sources = [ModelSource("one", lambda: llm), ModelSource("two", lambda: llm)]
    with running_models(sources) as (url, _), opened(browser, url) as page:
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
        for name, number in (("one", 0), ("two", 1)):
            assert page.locator(".meter .words").nth(number).inner_text().startswith(name)
        assert page.locator("#models").input_value() == "two"


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


DROP = """files => {
  const data = new DataTransfer();
  for (const [name, bytes] of files) data.items.add(new File([new Uint8Array(bytes)], name));
  document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
}"""
SENT = "What is it?\n\na.py:\n````py\nx = 1\n```\n````\n\nb.txt:\n```txt\nü\n```"


def test_texts_go_with_a_message_as_chips_and_all_else_is_refused(browser, url):
    with opened(browser, url) as page:
        chips = page.locator("#files li")
        page.fill("#prompt", "What is it?")
        page.evaluate(
            DROP, [["a.py", [*b"x = 1\r\n```\n"]], ["b.txt", [*"ü".encode()]], ["c", [99]]]
        )
        expect(chips).to_have_count(3)
        assert chips.first.inner_text().replace("\n", " ") == "a.py 2 lines, about 3 tokens ✕"
        page.get_by_label("Remove c").click()
        expect(chips).to_have_count(2)
        assert page.locator("#trouble").is_hidden()
        page.evaluate(DROP, [["c.png", [137, 80, 78, 71, 0, 255]]])
        page.locator("#trouble").get_by_text("c.png is not text").wait_for()
        page.evaluate(DROP, [["e.pdf", [*b"%PDF-1.7"]]])
        page.locator("#trouble").get_by_text("e.pdf is a PDF: pdftotext").wait_for()
        page.set_input_files(
            "#file", {"name": "d.txt", "mimeType": "text/plain", "buffer": b"x" * 2_000_000}
        )
        page.locator("#trouble").get_by_text("d.txt has 1.9 MiB: files of up to 1 MiB").wait_for()
        page.reload()  # what was not sent stays
        expect(chips).to_have_count(2)
        assert page.input_value("#prompt") == "What is it?"
        bodies = answer_with(page, streamed([("ok", {"content": "ok"})]))
        send(page, "What is it?")
        expect(chips).to_have_count(0)
        assert bodies[0]["messages"][-1]["content"] == SENT
        assert page.locator(".user .text").inner_text() == "What is it?"
        page.locator(".attached summary").first.click()
        assert page.locator(".attached pre").first.inner_text() == "x = 1\n```\n"
        page.fill("#search", "x = 1")  # files are searched too
        expect(page.locator("#chats li")).to_have_count(1)
        page.locator(".user >> text=Edit").click()
        page.fill(".editor textarea", "And now?")
        page.click(".editor .main")
        ended(page)
        assert bodies[1]["messages"][-1]["content"] == SENT.replace("What is it?", "And now?")


def test_a_refused_message_comes_back_with_its_files(browser, url):
    with opened(browser, url) as page:
        page.evaluate(DROP, [["long.txt", [*b"word " * 4000]]])
        page.locator("#files li").wait_for()
        page.press("#prompt", "Enter")  # a file alone is a message
        page.locator("#trouble >> text=tokens").wait_for()
        expect(page.locator("#files li")).to_have_count(1)
        assert page.locator(".turn").count() == 0


VOICES = """(() => {
  window.spoken = [];
  const own = {
    getVoices: () => [{name: "far", localService: false}, {name: "near", lang: "en-US", localService: true}],
    addEventListener() {}, cancel() {}, speak: (one) => window.spoken.push([one.text, one.voice.name]),
  };
  Object.defineProperty(window, "speechSynthesis", {value: own});
  window.SpeechSynthesisUtterance = function (text) { this.text = text; };
})()"""


def test_an_answer_is_spoken_by_a_voice_of_this_machine_alone(browser, url):
    with opened(browser, url) as page:
        bodies = answer_with(page, streamed([("**ok**", {"content": "**ok**"})]))
        send(page, "Hi")
        assert page.locator("text=Listen").is_hidden()  # there is no voice here
        page.add_init_script(VOICES)
        page.reload()
        page.locator("text=Listen").click()
        assert page.evaluate("window.spoken") == [["ok", "near"]]
        page.locator("text=Stop the voice").click()
        page.locator("text=Listen").wait_for()
        assert len(bodies) == 1


def test_what_signs_mean_is_told_in_words_and_which_drafter_runs(browser, url):
    with opened(browser, url) as page:
        page.locator("#model >> text=tiny").wait_for()
        page.click("#help")
        said = page.locator("#keys").inner_text()
        assert "guessed by the drafter; the model has checked it and found it right" in said
        assert "tokens of the answer for each pass" in said
        page.click("#keys .main")
        page.click("#open-settings")
        assert page.locator("#drafter").inner_text() == "with prompt_lookup, the server's drafter"
        page.fill("#settings [name=max_draft]", "1")
        page.click("#settings .main")
        bodies = answer_with(page, streamed([("ok", {"content": "ok"})]))
        send(page, "Hi")
        page.click("#open-settings")
        page.uncheck("#drafting")
        page.click("#settings .main")
        send(page, "Hi")
        given = [one["speculative"] for one in bodies]
        assert given == [{"max_draft": 1}, {"drafter": "none"}]


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
        call = {"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}}
        answer_with(page, streamed([*THINKS[:4], *pieces, ("", {"tool_calls": [call]})]))
        page.evaluate(DROP, [["a.py", [*b"x = 1"]]])
        page.locator("#files li").wait_for()
        assert findings(page) == []
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
        page.click("#help")
        assert findings(page) == []
        page.keyboard.press("Escape")
        if width < 800:
            page.click("#open-side")
            page.locator("#new").wait_for()
            assert findings(page) == []
