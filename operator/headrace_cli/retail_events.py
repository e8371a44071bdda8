"""A shop's day by a seed: sales, shipments and products as producers would send them.

Sales come at random moments, more for popular products, in waves of demand; a low shelf gets a
shipment some time later. Some records are delayed, some are sent twice, so they arrive out of order
and more than once. Pure: it yields moments, and the caller waits for them.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Sent", "Shop", "shop_day"]

_NAMES = ("Tea", "Coffee", "Bread", "Rice", "Soap", "Batteries", "Apples", "Candles")
_BASKETS = (1, 1, 1, 2, 2, 3, 5)
_FULL, _LOW = 60, 25
_USUAL_DELAY_SECONDS = 0.5
_WAVE_SECONDS = 90.0


@dataclass(frozen=True, kw_only=True)
class Shop:
    """What is sold, how fast, and how unreliably records are delivered.

    `delay_seconds_max` is a record's longest delay. `delayed` and `doubled` are shares.
    """

    seed: int
    sales: int
    sales_per_second: float = 10.0
    products: int = 8
    stores: tuple[str, ...] = ("north", "south", "harbour")
    delayed: float = 0.1
    doubled: float = 0.03
    delay_seconds_max: float = 8.0


@dataclass(frozen=True, kw_only=True, order=True)
class Sent:
    """A record and its sending time in seconds since the start, its topic and its value."""

    at_seconds: float
    number: int
    kind: str
    key: str
    value: str


def shop_day(shop: Shop, *, begin_ms: int) -> Iterator[Sent]:
    """Yield all records in the order of sending. Kinds: product, shipment, sale.

    `begin_ms`: the event time at which the shop opens, milliseconds since 1970.
    """
    yield from _Day(shop, begin_ms).run()


class _Day:
    def __init__(self, shop: Shop, begin_ms: int) -> None:
        self._shop = shop
        self._begin_ms = begin_ms
        self._rng = random.Random(shop.seed)  # noqa: S311 - a shop, no secret
        self._products = [f"p-{number:02}" for number in range(1, shop.products + 1)]
        self._shelves: dict[tuple[str, str], int] = {}
        #: Shipments in transit: when they arrive, product, store, quantity.
        self._due: list[tuple[float, str, str, int]] = []
        self._shipments = 0
        self._sent: list[Sent] = []

    def run(self) -> list[Sent]:
        for number, name in enumerate(self._products):
            self._price_list(name, number)
            for store in self._shop.stores:
                self._due.append((self._rng.uniform(0, 1), name, store, _FULL))
        at_seconds = 1.0
        for number in range(1, self._shop.sales + 1):
            at_seconds += self._rng.expovariate(self._shop.sales_per_second)
            for arrival in sorted(each for each in self._due if each[0] <= at_seconds):
                self._due.remove(arrival)
                self._arrive(*arrival)
            self._sell(number, at_seconds)
        return sorted(self._sent)

    def _price_list(self, name: str, number: int) -> None:
        """Send the product's row, and the next one, which is announced before it is valid."""
        later_ms = int(500 * self._shop.sales / self._shop.sales_per_second) + 1
        for valid_from_ms in (self._begin_ms, self._begin_ms + later_ms):
            row = {
                "product": name,
                "name": _NAMES[number % len(_NAMES)],
                "price_cents": self._rng.randrange(100, 2000),
                "reorder_below": self._rng.randrange(15, _LOW + 5),
                "reorder_quantity": self._rng.randrange(20, 60),
                "valid_from": valid_from_ms,
            }
            self._put(0, "product", row)

    def _arrive(self, at_seconds: float, name: str, store: str, quantity: int) -> None:
        self._shipments += 1
        self._shelves[name, store] = self._shelves.get((name, store), 0) + quantity
        event = {"store": store, "product": name, "quantity": quantity}
        self._send("shipment", self._shipments, event, at_seconds)

    def _sell(self, number: int, at_seconds: float) -> None:
        name = _wanted(self._rng, self._products, at_seconds)
        store, quantity = self._rng.choice(self._shop.stores), self._rng.choice(_BASKETS)
        event = {"store": store, "product": name, "quantity": quantity}
        self._send("sale", number, event, at_seconds)
        left = self._shelves.get((name, store), 0) - quantity
        self._shelves[name, store] = left
        if left <= _LOW and not any(each[1:3] == (name, store) for each in self._due):
            arrives = at_seconds + self._rng.uniform(2, 15)
            self._due.append((arrives, name, store, _FULL - max(left, 0)))

    def _send(self, kind: str, number: int, event: dict[str, Any], at_seconds: float) -> None:
        """Send an event: at once, late, or twice."""
        longest = self._shop.delay_seconds_max
        is_delayed = self._rng.random() < self._shop.delayed
        delay = self._rng.uniform(0, longest if is_delayed else _USUAL_DELAY_SECONDS)
        delays = [delay]
        if self._rng.random() < self._shop.doubled:
            delays.append(self._rng.uniform(delay, longest))
        # The ids contain the day: another day with the same seed has other events.
        value = {f"{kind}_id": f"{self._begin_ms}-{number:06}", **event}
        value["occurred_at"] = self._begin_ms + int(at_seconds * 1000)
        for each in delays:
            self._put(at_seconds + each, kind, value)

    def _put(self, at_seconds: float, kind: str, value: dict[str, Any]) -> None:
        key, text = value["product"], json.dumps(value)
        number = len(self._sent)
        self._sent.append(
            Sent(at_seconds=at_seconds, number=number, kind=kind, key=key, value=text)
        )


def _wanted(rng: random.Random, names: list[str], at_seconds: float) -> str:
    """Return a product: the first ones are popular, and each has its hours."""
    weights = [
        (1 + math.sin(at_seconds / _WAVE_SECONDS * 2 * math.pi + number)) / (number + 1) + 0.02
        for number in range(len(names))
    ]
    return rng.choices(names, weights)[0]
