"""Conversations on the page: what is kept, by one tab or two, and what stands beside what."""

from __future__ import annotations

import pytest

from tests.server.browser.page import (
    answer_with,
    ended,
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
        assert page.locator(".user .text").inner_text() == "First"
        assert page.input_value("#prompt") == "not sent yet"
        page.press("#prompt", "Enter")
        ended(page)
        page.reload()
        assert page.locator(".user .text").last.inner_text() == "not sent yet"
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
