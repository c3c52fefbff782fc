"""Conversations on the page: what is kept, by one tab or two, and what stands beside what."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.server.browser.page import (
    THINKS,
    answer_with,
    ended,
    expect,
    kept,
    opened,
    send,
    send_endless,
    set_field,
    streamed,
)

pytestmark = pytest.mark.browser


def test_a_reload_keeps_the_open_conversation_and_what_is_not_sent(browser, url):
    with opened(browser, url) as page:
        set_field(page, "max_tokens", "4")
        send(page, "First")
        page.click("#new")
        send(page, "Second")
        page.click("#chats .title >> text=First")
        page.fill("#prompt", "not sent yet")
        page.reload()
        expect(page.locator(".user .text")).to_have_text("First", use_inner_text=True)
        assert page.input_value("#prompt") == "not sent yet"
        page.press("#prompt", "Enter")
        ended(page)
        page.reload()
        expect(page.locator(".user .text").last).to_have_text("not sent yet", use_inner_text=True)
        assert page.input_value("#prompt") == ""


def test_an_answer_goes_on_while_another_conversation_is_open(browser, long_url):
    with opened(browser, long_url) as page:
        set_field(page, "max_tokens", "6")
        send(page, "First")
        page.click("#new")
        set_field(page, "max_tokens", "120")
        send(page, "Write a long story of a dragon.", wait=False)
        page.locator(".meter .words").wait_for()
        page.click("#chats .title >> text=First")
        expect(page.locator("#send")).to_have_text("Send")
        expect(page.locator(".waiting")).to_have_count(0)
        set_field(page, "max_tokens", "4")
        send(page, "Second question")
        page.click("#chats .title >> text=dragon")
        ended(page)
        answer = page.locator(".assistant .text")
        assert "Stopped." not in page.locator(".turn").last.inner_text()
        text = answer.inner_text()
        page.reload()
        expect(answer).to_have_text(text, use_inner_text=True)
        page.click("#chats .title >> text=First")
        expect(page.locator(".turn")).to_have_count(4)


def test_what_comes_in_the_background_can_be_looked_at_and_stopped(browser, long_url):
    with opened(browser, long_url) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        send_endless(page)
        page.click("#new")
        expect(page.locator("#send")).to_have_text("Send")
        page.locator("#chats .title").first.click()
        expect(page.locator("#send")).to_have_text("Stop")
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
        page.locator("#chats").get_by_label("Delete").click()
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


@pytest.mark.parametrize("size", [6_000_000, 3_900_000])
def test_nothing_is_deleted_for_a_message_that_finds_no_room(browser, url, size):
    with opened(browser, url) as page:
        tool = page.context.new_cdp_session(page)
        tool.send("Storage.overrideQuotaForOrigin", {"origin": url, "quotaSize": 2_000_000})
        page.reload()
        set_field(page, "max_tokens", "2")
        for text in ("First", "Second"):
            page.click("#new")
            send(page, text)
        page.click("#new")
        answer_with(page, streamed([("No", {"content": "No"})]))
        page.fill("#prompt", random.Random(0).randbytes(size // 2).hex())  # browsers compress
        page.press("#prompt", "Enter")
        page.locator("#trouble").wait_for()
        ended(page)
        assert "no room left" in page.locator("#trouble").inner_text()
        assert sorted(kept(page)) == [["First"], ["Second"]]
        page.reload()
        expect(page.locator("#chats li")).to_have_count(2)


def test_five_large_files_do_not_fill_the_browser(browser, url):
    with opened(browser, url) as page:
        answer_with(page, streamed([("Read", {"content": "Read"})]))
        for number in range(6):
            page.click("#new")
            page.fill("#prompt", f"{number} " + "x" * 1_000_000)
            page.press("#prompt", "Enter")
            ended(page)
        assert page.locator("#trouble").is_hidden()
        page.reload()
        expect(page.locator("#chats li")).to_have_count(6)


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
        expect(page.locator(".user .text")).to_have_text(
            ["One", "Two", "Four"], use_inner_text=True
        )
        expect(page.locator(".turn")).to_have_count(6)


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
        expect(page.locator(".turn")).to_have_count(6)
        assert all(page.locator(".assistant .text").all_inner_texts())


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
        expect(said).to_have_text(["Other"], use_inner_text=True)
        expect(page.locator(".versions:visible")).to_have_text("‹2 / 2›", use_inner_text=True)
        assert page.get_by_label("Newer version").first.is_disabled()
        page.get_by_label("Older version").first.click()
        expect(said).to_have_text(["One", "Two"], use_inner_text=True)
        page.reload()
        expect(said).to_have_text(["One", "Two"], use_inner_text=True)
        old = page.locator(".assistant .text").last.inner_text()
        page.locator(".assistant >> text=Regenerate").last.click()
        ended(page)
        shown = page.locator(".assistant .versions")
        expect(shown.last).to_have_text("‹2 / 2›", use_inner_text=True)
        shown.last.get_by_label("Older version").click()
        expect(page.locator(".assistant .text").last).to_have_text(old, use_inner_text=True)
        expect(page.locator(".turn")).to_have_count(4)
        page.get_by_label("Newer version").first.click()
        expect(said).to_have_text(["Other"], use_inner_text=True)


def test_conversations_of_earlier_versions_are_taken_over_and_shown_whole(browser, url):
    roles = ("user", "assistant")
    turns = [{"role": role, "text": f"{role} {n}", "drafted": []} for n in (1, 2) for role in roles]
    old = {"id": "old", "system": "", "time": 1, "turns": turns}
    branched = [{"id": str(n), "parent": None, "role": "user", "text": f"v{n}"} for n in (1, 2)]
    newer = {"id": "newer", "system": "", "time": 2, "last": "1", "turns": branched}
    with opened(browser, url) as page:
        for chat in (old, newer):
            page.evaluate(
                "one => localStorage.setItem(`forerun.chat.${one.id}`, JSON.stringify(one))", chat
            )
        page.reload()
        titles = page.locator("#chats .title")
        expect(titles).to_have_text(["v1", "user 1"])
        titles.last.click()
        expect(page.locator(".turn .text")).to_have_text([one["text"] for one in turns])
        assert page.evaluate("Object.keys(localStorage).filter((one) => /chat/.test(one))") == []
        page.reload()
        expect(page.locator(".turn .text")).to_have_text([one["text"] for one in turns])


def test_an_answer_in_the_background_is_marked_in_the_list(browser, long_url):
    with opened(browser, long_url) as page:
        set_field(page, "max_tokens", "60")
        send(page, "Write a long story of a dragon.", wait=False)
        page.locator(".meter .words").wait_for()
        page.click("#new")
        mark = page.locator("#chats .mark")
        assert mark.get_attribute("aria-label") == "An answer is coming"
        expect(mark).to_have_attribute("aria-label", "A new answer", timeout=60_000)
        page.click("#chats .title >> text=dragon")
        expect(mark).to_have_count(0)


def test_conversations_are_searched_and_renamed(browser, url):
    with opened(browser, url) as page:
        answer_with(page, streamed([("The Zürich train", {"content": "The Zürich train"})]))
        send(page, "First")
        answer_with(page, streamed([("no", {"content": "no"})]))
        for text in ("Second", "Third"):
            page.click("#new")
            send(page, text)
        titles = page.locator("#chats .title")
        page.fill("#search", "zÜRICH t")
        expect(titles).to_have_count(1)
        assert titles.inner_text().splitlines() == ["First", "The Zürich train"]
        page.fill("#search", "nowhere")
        page.locator("#nothing-found").wait_for()
        page.fill("#search", "")
        expect(titles).to_have_text(["Third", "Second", "First"])
        page.hover("#chats li >> nth=1")
        page.get_by_label("Rename Second").click()
        page.keyboard.type("Trains <b>")
        page.keyboard.press("Enter")
        expect(titles).to_have_text(["Third", "Trains <b>", "First"])
        page.get_by_label("Rename Third").focus()
        page.keyboard.press("Enter")
        page.keyboard.type("not this")
        page.keyboard.press("Escape")
        titles.nth(1).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(
            ["Trains <b>"], use_inner_text=True
        )
        send(page, "More")
        page.reload()
        expect(titles).to_have_text(["Trains <b>", "Third", "First"])
        page.fill("#search", "trains")
        expect(titles).to_have_count(1)


def test_a_pinned_conversation_stays_at_the_top(browser, url):
    with opened(browser, url) as page:
        answer_with(page, streamed([("no", {"content": "no"})]))
        titles = page.locator("#chats .title")
        for text in ("First", "Second"):
            page.click("#new")
            send(page, text)
        page.hover("#chats li >> nth=1")
        page.get_by_label("Pin First", exact=True).click()
        expect(titles).to_have_text(["★ First", "Second"])
        page.click("#new")
        send(page, "Third")
        page.reload()
        expect(titles).to_have_text(["★ First", "Third", "Second"])
        page.hover("#chats li >> nth=0")
        page.get_by_label("Unpin First").click()
        expect(titles).to_have_text(["Third", "Second", "First"])


def test_all_conversations_are_taken_along_as_one_file(browser, url, tmp_path):
    file = tmp_path / "all.json"
    with opened(browser, url) as page:
        answer_with(page, streamed(THINKS))
        for text in ("First", "Second"):
            page.click("#new")
            send(page, text)
        page.locator(".assistant >> text=Regenerate").click()
        ended(page)
        with page.expect_download() as download:
            page.click("#export")
        download.value.save_as(file)
        assert download.value.suggested_filename.endswith(".json")
        page.set_input_files("#chats-file", file)
        page.get_by_text("2 conversations are imported").wait_for(state="attached")
        assert sorted(kept(page)) == [["First"], ["Second"]], "none is there twice"
    with opened(browser, url) as page:
        page.set_input_files("#chats-file", file)
        page.click("#chats .title >> text=Second")
        expect(page.locator(".assistant .text")).to_have_text("Four it is.", use_inner_text=True)
        expect(page.locator(".assistant .versions")).to_have_text("‹2 / 2›", use_inner_text=True)
        expect(page.locator(".assistant .thought")).to_have_count(1)
        page.reload()
        expect(page.locator("#chats li")).to_have_count(2)


TURN = {"id": "a", "parent": "b", "role": "user", "text": "Loop <img src=x>"}
STRANGE = [
    TURN | {"last": 1},
    {"id": "b", "parent": "a", "role": "x", "text": "Answer", "drafted": 5, "timings": {"a": 1}},
    {"id": "c", "parent": "c", "text": "Own parent", "thought": {"text": 1}, "made": "x"},
    {"id": 1, "text": "no id"},
    {"id": "b", "text": "twice"},
    None,
]


def test_a_file_that_is_none_or_a_strange_one_harms_nothing(browser, url, tmp_path: Path):
    whole = {"format": "forerun conversations", "version": 1}
    chats = [{"id": "one", "last": "b", "turns": STRANGE}, {"turns": []}, {"id": "x"}, 3]
    with opened(browser, url) as page:
        for number, content in enumerate(("{", "[]", '{"format": "other", "chats": []}')):
            file = tmp_path / f"{number}.json"
            file.write_text(content)
            page.set_input_files("#chats-file", file)
            page.locator("#trouble").get_by_text(f"{number}.json is not a file of").wait_for()
        file = tmp_path / "strange.json"
        file.write_text(json.dumps(whole | {"chats": chats}))
        page.set_input_files("#chats-file", file)
        page.click("#chats .title")
        expect(page.locator(".turn .text")).to_have_text(["Loop <img src=x>", "Answer"])
        expect(page.locator("#log img")).to_have_count(0)
        assert page.locator("#trouble").is_hidden()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_list_has_room_for_what_can_be_done(browser, url, width):
    with opened(browser, url, viewport={"width": width, "height": 700}) as page:
        answer_with(page, streamed([("no", {"content": "no"})]))
        send(page, "A question whose title is longer than the list is wide, by some words")
        if width < 800:
            page.click("#open-side")
        page.hover("#chats li")
        for name in ("Pin", "Rename", "Delete"):
            box = page.locator("#chats").get_by_label(name).bounding_box()
            assert box["x"] + box["width"] <= page.locator("#side").bounding_box()["width"]
        assert page.locator("#side").evaluate("one => one.scrollWidth <= one.clientWidth")
