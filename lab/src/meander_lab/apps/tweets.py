"""Made-up tweets: words as skewed as language, with topics that become hot for a while.

Tweet number n is the same in every process, at any time, and whichever tweets are made with it: every choice is a hash
of the seed, the number and what is chosen. Nothing here knows of Spark.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.options import amount, positive, whole

Numbers = NDArray[np.uint64]
Floats = NDArray[np.float64]

FLATTER = 10.0
"""Zipf's law with the very first ranks levelled (Mandelbrot's form): real tweets have no word in every second one."""

SPREAD = 0.5
"""How much lengths differ, as the standard deviation of their logarithm."""

FAITHFUL = 0.8
"""How often a tweet on a topic has any one of the topic's words."""

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
LENGTH, ABOUT, WORD, TOPIC, HAS = range(1, 6)
"""What a hash is for."""


@dataclass(frozen=True)
class Tweets:
    """What tweets are made of.

    Args:
        vocabulary: how many words there are.
        exponent: of Zipf's law: the word of rank r comes about 1 / r ** exponent as often as the first.
        mean_words: words in a tweet, about.
        longest: words in a tweet at most.
        topic_every: a new topic comes up every so many tweets.
        topic_lasts: it is hot for so many.
        topic_words: words that belong to a topic, and come together.
        heat: how many of the tweets are on the topic while it is hot, from 0 to 1.
        seed: which tweets.
    """

    vocabulary: int = 20_000
    exponent: float = 1.0
    mean_words: float = 8.0
    longest: int = 30
    topic_every: int = 5_000
    topic_lasts: int = 2_000
    topic_words: int = 4
    heat: float = 0.1
    seed: int = 1

    def __post_init__(self) -> None:
        whole("vocabulary", self.vocabulary, 1, 10_000_000)
        whole("longest", self.longest, 1, 1000)
        whole("topic_every", self.topic_every, 1)
        whole("topic_lasts", self.topic_lasts, 0, self.topic_every)
        whole("topic_words", self.topic_words, 0, 1000)
        whole("seed", self.seed, 0, 2**63 - 1)
        positive("exponent", self.exponent)
        positive("mean_words", self.mean_words)
        if amount("heat", self.heat) > 1:
            raise InvalidOption(f"heat is {self.heat:g}; it is a share of the tweets, from 0 to 1")

    def texts(self, first: int, last: int) -> pa.Array:
        """The tweets first to last - 1, each as its words with blanks between them.

        >>> Tweets().texts(0, 100).slice(40, 2) == Tweets().texts(40, 42)
        True
        """
        number = np.arange(whole("first", first, 0), whole("last", last, first), dtype=np.uint64)
        lengths = 1 + np.searchsorted(_lengths(self.mean_words, self.longest), _chance(self._hash(LENGTH, number)))
        ends = np.cumsum(lengths)
        owner = np.repeat(np.arange(number.size), lengths)
        place = np.arange(owner.size) - np.repeat(ends - lengths, lengths)
        which = number[owner] * np.uint64(self.longest) + place.astype(np.uint64)
        rank = np.searchsorted(_ranks(self.vocabulary, self.exponent), _chance(self._hash(WORD, which)))
        hot = number % np.uint64(self.topic_every) < np.uint64(self.topic_lasts)
        hot &= _chance(self._hash(ABOUT, number)) < self.heat
        on = hot[owner] & (place < self.topic_words) & (_chance(self._hash(HAS, which)) < FAITHFUL)
        topic = number[owner[on]] // np.uint64(self.topic_every)
        of_topic = topic * np.uint64(max(1, self.topic_words)) + place[on].astype(np.uint64)
        rank[on] = (self._hash(TOPIC, of_topic) % np.uint64(self.vocabulary)).astype(rank.dtype)
        words = _words(self.vocabulary).take(pa.array(rank))
        offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
        return pc.binary_join(pa.ListArray.from_arrays(offsets, words), " ")

    def _hash(self, what: int, number: Numbers) -> Numbers:
        seeded = _mixed(np.array([self.seed * 8 + what & 2**64 - 1], np.uint64))
        return _mixed(_mixed(number) ^ seeded)


def _mixed(number: Numbers) -> Numbers:
    """A hash of each number: the finalizer of SplitMix64."""
    mixed = number + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _chance(hashed: Numbers) -> Floats:
    """A hash as a number from 0 to below 1."""
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(maxsize=8)
def _lengths(mean: float, longest: int) -> Floats:
    """For each length the share of tweets that are shorter than the next one: log-normal, cut."""
    length = np.arange(1, longest + 1)
    return _below(np.exp(-((np.log(length / mean) / SPREAD) ** 2) / 2) / length.astype(np.float64))


@lru_cache(maxsize=8)
def _ranks(vocabulary: int, exponent: float) -> Floats:
    return _below((np.arange(1, vocabulary + 1) + FLATTER) ** -exponent)


def _below(weights: NDArray[Any]) -> Floats:
    shares: Floats = np.cumsum(weights) / weights.sum()
    shares[-1] = 1.0  # rounding must not leave a chance for which there is nothing
    return shares


@lru_cache(maxsize=8)
def _words(vocabulary: int) -> pa.Array:
    """A word for each rank, none twice: a number in syllables, and numbers of neighbouring ranks far apart."""
    syllables = np.array([consonant + vowel for consonant in CONSONANTS for vowel in VOWELS], dtype=object)
    long = 2
    while syllables.size**long < vocabulary:
        long += 1
    there_are = syllables.size**long
    stride = there_are * 13 // 21
    while math.gcd(stride, there_are) > 1:
        stride += 1
    number = np.arange(vocabulary) * stride % there_are
    words = syllables[number % syllables.size]
    for _ in range(1, long):
        number //= syllables.size
        words = words + syllables[number % syllables.size]
    return pa.array(words, pa.string())
