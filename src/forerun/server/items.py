"""The items of the last answers of `/v1/responses`, which clients refer to by id instead of sending them again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from forerun.server.errors import ApiError
from forerun.server.http import to_json

Item = dict[str, Any]

REFERENCE = "item_reference"
MOST, MAX_NBYTES = 1024, 16 << 20
"""Items that are kept in memory, and bytes of their JSON."""


class LastItems:
    """The newest items, in memory alone; the oldest go first."""

    def __init__(self, most: int = MOST, max_nbytes: int = MAX_NBYTES) -> None:
        self._most, self._max_nbytes = most, max_nbytes
        self._items: OrderedDict[str, tuple[Item, int]] = OrderedDict()
        self._nbytes = 0

    def keep(self, items: Iterable[Item]) -> None:
        """Keep the items of an answer, under their ids."""
        for item in items:
            self._drop(item["id"])
            nbytes = len(to_json(item))
            self._items[item["id"]] = item, nbytes
            self._nbytes += nbytes
        while len(self._items) > self._most or self._nbytes > self._max_nbytes:
            self._drop(next(iter(self._items)))

    def resolved(self, items: Iterable[Item]) -> list[Item]:
        """Return a request's items, those that are referred to in full. Raises ApiError for one that is not kept."""
        return [self._named(str(one.get("id"))) if is_reference(one) else one for one in items]

    def _named(self, name: str) -> Item:
        if name not in self._items:
            raise ApiError(
                404,
                f"Item with id '{name}' not found. Items are not persisted when `store` is set to false, and the "
                "last ones alone are kept: send the item itself instead of its id.",
                param="input",
            )
        return self._items[name][0]

    def _drop(self, name: str) -> None:
        self._nbytes -= self._items.pop(name, ({}, 0))[1]


def is_reference(item: Mapping[str, Any]) -> bool:
    """Tell an item that only has the id of another; OpenAI's need no type."""
    return item.get("type") == REFERENCE or (not item.get("type") and {*item} <= {"type", "id"})
