"""Answers on the page, as a person reads, stops, repeats and goes on with them, in chromium."""

from __future__ import annotations

import re

import pytest

from tests.server.browser.page import (
    ASKED,
    FORMS,
    THINKS,
    answer_with,
    ended,
    expect,
    opened,
    send,
    send_endless,
    set_field,
    streamed,
)

pytestmark = pytest.mark.browser


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
        expect(page.locator(".user .text")).to_have_text(ASKED, use_inner_text=True)
        expect(answer).to_have_text(text, use_inner_text=True)
        assert answer.locator("mark.drafted").count() > 0


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
        expect(page.locator(".turn")).to_have_count(2)


def test_stop_regenerate_edit_and_delete(browser, long_url):
    with opened(browser, long_url) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        send_endless(page)
        page.keyboard.press("Escape")
        ended(page)
        expect(page.locator(".assistant .note.why")).to_have_text("Stopped.", use_inner_text=True)
        set_field(page, "max_tokens", "8")
        page.click(".assistant >> text=Regenerate")
        ended(page)
        expect(page.locator(".turn")).to_have_count(2)
        assert "7 tokens after the first in" in page.locator(".meter .words").inner_text()
        send(page, "More")
        expect(page.locator(".turn")).to_have_count(4)
        page.locator(".user >> text=Edit").first.click()
        page.fill(".editor textarea", ASKED)
        page.press(".editor textarea", "Enter")
        ended(page)
        expect(page.locator(".turn")).to_have_count(2)
        expect(page.locator(".user .text")).to_have_text(ASKED, use_inner_text=True)
        page.click(".assistant >> text=Edit")
        page.fill(".editor textarea", "*mine*")
        page.click(".editor >> text=Save")
        expect(page.locator(".assistant em")).to_have_text("mine", use_inner_text=True)
        page.hover("#chats li")
        page.get_by_role("button", name=f"Delete {ASKED}").click()
        expect(page.locator(".turn")).to_have_count(0)
        expect(page.locator("#chats li")).to_have_count(0)


def test_an_answer_whose_question_is_gone_can_be_asked_for(browser, url):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "2")
        send(page, "Hi")
        page.evaluate(
            """() => new Promise((done) => {
              indexedDB.open("forerun").onsuccess = ({target}) => {
                const store = target.result.transaction("turns", "readwrite").objectStore("turns");
                store.getAll().onsuccess = ({target: {result}}) => {
                  const {chat, id} = result.find((turn) => turn.role === "user");
                  store.delete([chat, id]).onsuccess = done;
                };
              };
            })"""
        )
        page.reload()
        page.click(".assistant >> text=Regenerate")
        page.locator("#trouble >> text=the conversation is empty").wait_for()


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
            expect(page.locator(f"#log {made}")).to_have_count(0)
        links = page.locator("#log a").evaluate_all("all => all.map((one) => one.href)")
        assert all(link.startswith("https://x.org/") for link in links)
        assert "<script>alert(5)</script>" in page.locator("pre code").inner_text()
        expect(page.locator(".assistant strong")).to_have_text("<i>x</i>", use_inner_text=True)
        expect(page.locator(".code button")).to_have_text("Copy", use_inner_text=True)


def test_thoughts_fold_away_and_are_not_sent_back(browser, url):
    with opened(browser, url) as page:
        bodies = answer_with(page, streamed(THINKS))
        send(page, "2 + 2?")
        said, thought = page.locator(".assistant .text"), page.locator(".assistant .thought")
        expect(said).to_have_text("Four it is.", use_inner_text=True)
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
        expect(page.locator(".assistant .thought")).to_have_count(2)
        expect(said.first).to_have_text("Four it is.", use_inner_text=True)


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


def test_html_that_models_write_is_shown_as_it_is_meant(browser, url):
    text = "| a |\n|---|\n| b<br>c &amp; H<sub>2</sub>O |\n\n![a cat](https://x.org/cat.png) <img src=x>"
    with opened(browser, url) as page:
        answer_with(page, streamed([(sign, {"content": sign}) for sign in text]))
        send(page, "html")
        expect(page.locator(".md td")).to_have_text("b\nc & H2O", use_inner_text=True)
        expect(page.locator(".md td sub")).to_have_text("2", use_inner_text=True)
        expect(page.locator(".md > p")).to_have_text("a cat <img src=x>", use_inner_text=True)
        assert page.locator(".md a").get_attribute("href") == "https://x.org/cat.png"


def test_formulas_between_dollars_are_drawn_and_money_is_not(browser, url):
    text = "Energy is $E = mc^2$, and $x_1$ too. It costs $5 and $10, US$3.\n\n"
    text += "\\begin{align}\na &= b \\\\\nc &= d\n\\end{align}\n\n\\begin{align}\nno end"
    with opened(browser, url) as page:
        answer_with(page, streamed([(text, {"content": text})]))
        send(page, "formulas")
        expect(page.locator(".md p math")).to_have_count(2)
        expect(page.locator(".md math[display=block]")).to_have_count(1)
        said = page.locator(".turn.assistant .text").inner_text()
        assert "It costs $5 and $10, US$3." in said
        assert "no end" in said


def test_marks_of_formulas_that_never_end_are_read_in_linear_time(browser, url):
    took = """async ([text, times]) => {
      const { parse } = await import(document.querySelector('script[src$="main.js"]').src.replace("main", "markdown"));
      const start = performance.now();
      parse(text.repeat(times));
      return performance.now() - start;
    }"""
    with opened(browser, url) as page:
        for text in ("$a ", "$a\n", "$a$1 ", "\\begin{align}\n", "\\begin{align}\n\n"):
            page.evaluate(took, [text, 4000])
            short, long = (
                min(page.evaluate(took, [text, times]) for _ in range(3)) for times in (8000, 32000)
            )
            assert long < 10 * short + 50, (
                f"{text!r}: {short:.0f} ms, four times as much {long:.0f} ms"
            )


def test_how_far_a_prompt_is_read_is_told(browser, long_url):
    with opened(browser, long_url) as page:
        send(page, "Sum up: " + "one two three " * 900, wait=False)
        page.get_by_text(re.compile(r"Reading the prompt: \d+ of \d+ tokens")).wait_for()
        page.keyboard.press("Escape")
        ended(page)
        assert page.get_by_text("Reading the prompt").count() == 0


def test_an_answer_is_shown_in_its_forms_and_directions(browser, url):
    with opened(browser, url) as page:
        answer_with(page, streamed([(FORMS, {"content": FORMS})]))
        page.fill("#prompt", "مرحبا")
        direction = "one => getComputedStyle(one).direction"
        assert page.locator("#prompt").evaluate(direction) == "rtl"
        send(page, "Show")
        assert page.locator("#prompt").evaluate(direction) == "ltr"
        expect(page.locator(".md td")).to_have_text(["a | b", "either"], use_inner_text=True)
        boxes = page.locator(".md .task input")
        assert [box.is_checked() for box in boxes.all()] == [True, False]
        assert page.locator(".md p math msubsup").text_content() == "a12"
        unread = ["\\frac{", "\\href{javascript:alert(1)}{x}"]
        expect(page.locator(".md code.math")).to_have_text(unread, use_inner_text=True)
        expect(page.locator(".md .wide math[display=block] mfrac")).to_have_count(1)
        expect(page.locator(".md math a, .md math [href]")).to_have_count(0)
        expect(page.locator(".md .word-keyword")).to_have_text(
            ["def", "return"], use_inner_text=True
        )
        expect(page.locator(".md .word-comment")).to_have_text("# twice", use_inner_text=True)
        assert (
            page.locator("pre code").inner_text() == "def double(x):  # twice\n    return 2 * x\n"
        )
        assert page.locator(".md > p").last.evaluate(direction) == "rtl"
        assert page.locator(".md > p").first.evaluate(direction) == "ltr"


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
        expect(page.locator("#turns li")).to_have_count(2)
        page.reload()
        expect(page.locator("#turns li")).to_have_count(2)


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
        expect(page.locator(".turn")).to_have_count(2)
        page.reload()
        expect(page.locator(".assistant >> text=Go on")).to_be_visible()


def test_an_answer_goes_on_after_a_lost_connection_thoughts_and_all(browser, url):
    lost = streamed(THINKS).rpartition('data: {"choices": [{"index": 0, "delta": {}')[0]
    rest = streamed([(" Or so.", {"content": " Or so."})])
    with opened(browser, url) as page:
        bodies = answer_with(page, lost, rest)
        send(page, "2 + 2?")
        assert "connection was lost" in page.locator(".assistant .note.why").inner_text()
        page.click(".assistant >> text=Go on")
        ended(page)
        expect(page.locator(".assistant .text")).to_have_text(
            "Four it is. Or so.", use_inner_text=True
        )
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
        expect(page.locator(".assistant .note.why")).to_have_text("Stopped.", use_inner_text=True)
        assert page.locator(".assistant >> text=Go on").is_visible()
