"""The hash that chooses a key's slot inside its bin: keyed by a secret, so that nobody can craft keys that collide.

The bin of a key is the high bits of a public hash, because Spark computes it too. Whoever writes rows can therefore
choose the bin of a key, and nothing more: inside the bin, a key's slot comes from SipHash-1-3 of its own bytes under
128 secret bits. A mix of the public hash would not do, since keys of one public hash would still share one slot; nor
would a multiplication by a secret, since some differences of keys survive it whatever the secret is. SipHash-1-3 is
what Python and Rust take for their own tables.

The index of a table keeps bits of this hash, so the secret is made with the table's files and stands in them: it is
the same for all processes that open them, and leaves the folder never. Files of a checkpoint hold rows, no slots.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]
Octets = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Secret = NDArray[np.uint64]

GROUP = 64
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
A, B = np.uint64(0x736F6D6570736575), np.uint64(0x646F72616E646F6D)
C, D = np.uint64(0x6C7967656E657261), np.uint64(0x7465646279746573)
END = np.uint64(0xFF)
ZERO, ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT = (np.uint64(number) for number in range(9))
S8, S13, S16, S17, S21, S24, S32, S40, S48, S56, S64 = (
    np.uint64(bits) for bits in (8, 13, 16, 17, 21, 24, 32, 40, 48, 56, 64)
)
EIGHT_BYTES = np.uint64(8 << 56)


def fresh_secret() -> Secret:
    """Two words that nobody can guess."""
    return np.frombuffer(os.urandom(16), np.uint64).copy()


@kernel
def hash_words(words: Words, spread: Hashes, bin_bits: int, secret: Secret, hashes: Hashes) -> None:
    """Fill the hash of each key of 8 bytes: its bin in the high bits, then those of its keyed hash."""
    bits, first, second = np.uint64(bin_bits), secret[0], secret[1]
    high = ALL ^ (ALL >> bits)
    for i in range(words.size):
        word = np.uint64(words[i])
        a, b, c, d = _round(first ^ A, second ^ B, first ^ C, second ^ D ^ word)
        hashes[i] = (spread[i] & high) | (_finish(a ^ word, b, c, d, EIGHT_BYTES) >> bits)


@kernel
def pack_keys(
    offsets: Words, data: Octets, spread: Hashes, bin_bits: int, secret: Secret, heap: Words, references: Words,
    hashes: Hashes,
) -> None:  # fmt: skip
    """Write keys of bytes as records, one after the other, and fill their references and hashes; as `hash_words`.

    A word is read once, to be copied and hashed. All keys end with the same four rounds, which are two thirds of the
    work for a short one: they run for a whole group, so that the compiler takes several keys at a time.
    """
    bits, first, second = np.uint64(bin_bits), secret[0], secret[1]
    high, size, at = ALL ^ (ALL >> bits), np.uint64(data.size), ZERO
    group_a, group_b = np.empty(GROUP, np.uint64), np.empty(GROUP, np.uint64)
    group_c, group_d = np.empty(GROUP, np.uint64), np.empty(GROUP, np.uint64)
    lasts = np.empty(GROUP, np.uint64)
    for begin in range(0, references.size, GROUP):
        count = min(GROUP, references.size - begin)
        for g in range(count):
            start, stop = np.uint64(offsets[begin + g]), np.uint64(offsets[begin + g + 1])
            length = stop - start
            references[begin + g] = np.int64((at << S32) | length) if length else 0
            a, b, c, d = first ^ A, second ^ B, first ^ C, second ^ D
            while start + EIGHT <= stop:
                word = _word(data, start)
                heap[at] = np.int64(word)
                a, b, c, d = _round(a, b, c, d ^ word)
                a ^= word
                start, at = start + EIGHT, at + ONE
            last = length << S56
            if start < stop:
                word = ZERO
                if start + EIGHT <= size:
                    word = _word(data, start) & (ALL >> (S64 - EIGHT * (stop - start)))
                else:
                    for k in range(stop - start):
                        word |= np.uint64(data[start + k]) << (EIGHT * k)
                heap[at] = np.int64(word)
                at += ONE
                last |= word
            group_a[g], group_b[g], group_c[g], group_d[g], lasts[g] = a, b, c, d, last
        for g in range(count):
            keyed = _finish(group_a[g], group_b[g], group_c[g], group_d[g], lasts[g])
            hashes[begin + g] = (spread[begin + g] & high) | (keyed >> bits)


@kernel
def _finish(a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64, last: np.uint64) -> np.uint64:
    a, b, c, d = _round(a, b, c, d ^ last)
    a, b, c, d = _round(a ^ last, b, c ^ END, d)
    a, b, c, d = _round(a, b, c, d)
    a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


@kernel
def _round(a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    a, c = a + b, c + d
    b, d = _rotate(b, S13) ^ a, _rotate(d, S16) ^ c
    a, c = _rotate(a, S32) + d, c + b
    b, d = _rotate(b, S17) ^ c, _rotate(d, S21) ^ a
    return a, b, _rotate(c, S32), d


@kernel
def _rotate(x: np.uint64, bits: np.uint64) -> np.uint64:
    return (x << bits) | (x >> (S64 - bits))


@kernel
def _word(data: Octets, at: np.uint64) -> np.uint64:
    # Spelled out in one function: only then the compiler merges the eight loads into one.
    return (
        np.uint64(data[at])
        | (np.uint64(data[at + ONE]) << S8)
        | (np.uint64(data[at + TWO]) << S16)
        | (np.uint64(data[at + THREE]) << S24)
        | (np.uint64(data[at + FOUR]) << S32)
        | (np.uint64(data[at + FIVE]) << S40)
        | (np.uint64(data[at + SIX]) << S48)
        | (np.uint64(data[at + SEVEN]) << S56)
    )
