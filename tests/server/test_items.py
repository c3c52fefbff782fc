"""Items of the last answers of /v1/responses can be referred to by id, as Vercel's SDK does; others are not found."""

from __future__ import annotations

import pytest

from forerun.server.errors import ApiError
from forerun.server.items import LastItems
from tests.server.conftest import chunks, post

ASKED = {"input": "Say hello.", "max_output_tokens": 8, "temperature": 0}


def second(item: dict) -> dict:
    said = [{"role": "user", "content": text} for text in ("Say hello.", "More.")]
    return ASKED | {"input": [said[0], item, said[1]]}


@pytest.mark.parametrize("streams", [True, False])
def test_a_reference_is_the_item_that_was_answered(url: str, streams: bool) -> None:
    answers = {
        True: lambda: chunks(url, "/v1/responses", ASKED)[-1]["response"],
        False: lambda: post(url, "/v1/responses", ASKED),
    }
    (item,) = answers[streams]()["output"]
    whole = post(url, "/v1/responses", second(item))
    for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
        found = post(url, "/v1/responses", second(reference))
        assert found["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        assert found["output"][0]["content"] == whole["output"][0]["content"]


def test_what_is_not_kept_is_not_found(url: str) -> None:
    (item,) = post(url, "/v1/responses", ASKED | {"store": False})["output"]
    for name in (item["id"], "fc_97"):
        reference = {"type": "item_reference", "id": name}
        error = post(url, "/v1/responses", second(reference), 404)["error"]
        assert error["message"].startswith(f"Item with id '{name}' not found.")
        assert "`store` is set to false" in error["message"]


def test_items_are_bounded_in_number_and_bytes() -> None:
    items = LastItems(most=3, max_nbytes=300)
    items.keep({"id": f"a{i}", "text": "x"} for i in range(5))
    assert [one["id"] for one in items.resolved([{"id": f"a{i}"} for i in (2, 3, 4)])] == [
        "a2",
        "a3",
        "a4",
    ]
    with pytest.raises(ApiError):
        items.resolved([{"id": "a1"}])
    items.keep([{"id": "b", "text": "x" * 250}])
    items.keep([{"id": "b", "text": "x" * 260}])
    assert items.resolved([{"id": "b"}])
    with pytest.raises(ApiError):
        items.resolved([{"id": "a4"}])
