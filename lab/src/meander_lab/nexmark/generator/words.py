"""The words that events are made of: names, places and channels, as Arrow arrays to take from by index."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander_lab.nexmark.generator.draw_kernel import CHANNELS, HOT_CHANNELS, TRIPLES, paths

FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
CITY_NAMES = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"
)  # fmt: skip
STATE_NAMES = ("AZ", "CA", "ID", "OR", "WA", "WY")
HOT_CHANNEL_NAMES = ("Google", "Facebook", "Baidu", "Apple")


class Words(NamedTuple):
    """A list of words and how long they are."""

    texts: pa.Array
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, words: list[str] | tuple[str, ...]) -> Words:
        """Return these words."""
        return cls(pa.array(words, pa.string()), np.array([len(word) for word in words], dtype=np.int64))


NAMES = Words.of([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])
CITIES = Words.of(CITY_NAMES)
STATES = Words.of(STATE_NAMES)


@lru_cache(maxsize=1)
def triples() -> NDArray[np.uint8]:
    """The three letters that Java makes of each number below 26^3, and then of each of their negatives.

    Java's remainders of a negative number are negative, so its letters come before the "a": half of all of them.
    """
    numbers = np.arange(TRIPLES)[:, None] // [1, 26, 676] % 26
    return np.concatenate([ord("a") + numbers, ord("a") - numbers]).astype(np.uint8)


@lru_cache(maxsize=1)
def channels() -> tuple[pa.Array, pa.Array]:
    """The names and the URLs of the channels: first the four hot ones, then 10,000 others.

    They look as Flink's do. Those are different in each run, as they come from randoms without a seed; these are
    drawn from one with seed 0, in the order of the channels.
    """
    names = [*HOT_CHANNEL_NAMES, *(f"channel-{i}" for i in range(CHANNELS))]
    ends, letters, named = paths(0)
    text, urls = letters.tobytes().decode(), []
    for i in range(len(names)):
        url = f"https://www.nexmark.com/{text[ends[i] : ends[i + 1]]}/item.htm?query=1"
        urls.append(f"{url}&channel_id={_reversed(i - HOT_CHANNELS)}" if named[i] else url)
    return pa.array(names, pa.string()), pa.array(urls, pa.string())


def _reversed(number: int) -> int:
    """Java's Math.abs(Integer.reverse(number)), which is negative for 1: that is Integer.MIN_VALUE."""
    bits = int(f"{number:032b}"[::-1], 2)
    return bits if bits < 2**31 else -bits if bits == 2**31 else 2**32 - bits
