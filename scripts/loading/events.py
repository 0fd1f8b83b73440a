"""JSON events as services write them: names and agents from short lists, identifiers that are
random, words as often as in a language. So they compress as real events do, where random bytes
would not at all, and one event sent again and again far too well.

An event has exactly the size that was asked for: fields are added while they fit, then items, and
a note of words fills the rest.
"""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Final

#: `{"note":""}` and a few words.
LEAST_EVENT_BYTES: Final = 16
_ITEM_BYTES: Final = 120
#: Things in the catalogue that items are taken from.
_TITLES: Final = 500
_NOTE_BYTES: Final = len(',"note":""')

_TEXT: Final = (
    "the of and to in is that for it was on are as with they at be this from have or by one had "
    "not but what all were when we there can an your which their said if do will each about how up "
    "out them then she many some so these would other into has more her two like him see time "
    "could no make than first been its who now people my made over did down only way find use may "
    "water long little very after words called just where most know get through back much before "
    "go good new write our used me man too any day same right look think also around another came "
    "come work three word must because does part even place well such here take why things help "
    "put years different away again off went old number great tell men say small every found still "
    "between name should home big give air line set own under read last never us left end along "
    "while might next sound below saw something thought both few those always looked show large "
    "often together asked house world going want school important until form food keep children "
    "delivery parcel invoice account checkout discount basket refund payment warehouse customer"
)
_WORDS: Final = _TEXT.split()
_WORD_WEIGHTS: Final = list(accumulate(1 / (rank + 1) for rank in range(len(_WORDS))))
_KINDS: Final = ("page_view", "click", "search", "add_to_cart", "purchase", "login", "refund")
_KIND_WEIGHTS: Final = list(accumulate((50, 25, 10, 7, 4, 3, 1)))
_COUNTRIES: Final = ("DE", "US", "GB", "FR", "JP", "BR", "IN", "NL", "PL", "SE")
_AGENTS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/128.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_6 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "okhttp/4.12.0",
)
_FIRST_EVENT_MS: Final = 1_790_000_000_000


class EventMaker:
    """Makes events one after the other; the same seed makes the same ones."""

    def __init__(self, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._count = 0
        self._titles = [self._text(32) for _ in range(_TITLES)]

    def event(self, size_bytes: int) -> bytes:
        """One JSON object of exactly this many bytes (LEAST_EVENT_BYTES at least)."""
        return b"{" + self.fields(size_bytes - 1)

    def fields(self, size_bytes: int) -> bytes:
        """What follows the `{` of an event: `"type":"click",…}`, exactly this many bytes."""
        if size_bytes < LEAST_EVENT_BYTES - 1:
            raise ValueError(f"an event has at least {LEAST_EVENT_BYTES} bytes")
        parts: list[str] = []
        room = size_bytes  # of the whole: each part counts one more, its comma or the last brace
        for part in self._fields():
            # What is left must be nothing, or enough for a note.
            if room - len(part) - 1 < _NOTE_BYTES:
                break
            parts.append(part)
            room -= len(part) + 1
        if room > 2 * _ITEM_BYTES:
            items, used = self._items(room - _ITEM_BYTES)
            parts.append(items)
            room -= used + 1
        parts.append(f'"note":"{self._text(room - _NOTE_BYTES)}"')
        self._count += 1
        return (",".join(parts) + "}").encode("ascii")

    def _fields(self) -> list[str]:
        chance = self._chance
        kind = chance.choices(_KINDS, cum_weights=_KIND_WEIGHTS)[0]
        user = int(chance.paretovariate(1.1) * 1000) % 5_000_000
        return [
            f'"type":"{kind}"',
            f'"user":{user}',
            f'"at_ms":{_FIRST_EVENT_MS + self._count * 7 + chance.randrange(7)}',
            f'"session":"{chance.getrandbits(64):016x}"',
            f'"country":"{chance.choice(_COUNTRIES)}"',
            f'"path":"/{"/".join(chance.choices(_WORDS, k=2))}/{chance.randrange(100_000)}"',
            f'"price_cents":{int(chance.lognormvariate(7.5, 1))}',
            f'"address":"10.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(256)}"',
            f'"agent":"{chance.choice(_AGENTS)}"',
            f'"took_ms":{int(chance.lognormvariate(3, 1))}',
        ]

    def _items(self, room: int) -> tuple[str, int]:
        """A list of things of about `room` bytes, never more; and what it takes."""
        items: list[str] = []
        used = len('"items":[]')
        chance = self._chance
        while True:
            item = (
                f'{{"sku":"{chance.getrandbits(40):010x}","count":{chance.randint(1, 5)},'
                f'"cents":{int(chance.lognormvariate(7, 1))},'
                f'"title":"{chance.choice(self._titles)}"}}'
            )
            if used + len(item) + 1 > room:
                return f'"items":[{",".join(items)}]', used - bool(items)
            items.append(item)
            used += len(item) + 1

    def _text(self, length: int) -> str:
        """Words, cut to the length."""
        words: list[str] = []
        size = 0
        while size < length:
            more = self._chance.choices(
                _WORDS, cum_weights=_WORD_WEIGHTS, k=1 + (length - size) // 6
            )
            words += more
            size += sum(map(len, more)) + len(more)
        return " ".join(words)[:length].ljust(length, ".")
