"""Where keys stand in an index: whoever writes rows can choose a key's bin, and must not choose its slot."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from meander.route.hashing import xxhash64
from meander.route.keys import KeyType
from meander.state.binfiles import CAPACITY, START
from meander.state.holding import Holding
from meander.state.overlay import KeyRows
from meander.state.slot_hash import hash_words, pack_keys
from meander.state.spec import TableSpec

BINS = 256
KEYS = 40_000
NUMBERS = KeyType((("k", pa.int64()),))
COUNTS = TableSpec("counts", NUMBERS, (("n", pa.int64()),))

WORD = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def crafted(count: int) -> np.ndarray:
    """Numbers whose public hashes all begin with the same 40 bits: one bin, and one slot if slots were public."""
    first = 0xC0FFEE1234 << 24
    return np.array([_number_of(first | k) for k in range(count)], np.uint64).view(np.int64)


def _number_of(hash_: int) -> int:
    """The number that Spark's xxhash64 maps to this hash: every step of it can be undone."""
    x = hash_ ^ (hash_ >> 32)
    x = x * pow(P3, -1, 1 << 64) & WORD
    x = (x ^ (x >> 29) ^ (x >> 58)) * pow(P2, -1, 1 << 64) & WORD
    x ^= x >> 33
    x = _rotated((x - P4) * pow(P1, -1, 1 << 64) & WORD, 64 - 27)
    x = (x ^ ((42 + P5 + 8) & WORD)) * pow(P1, -1, 1 << 64) & WORD
    return _rotated(x, 64 - 31) * pow(P2, -1, 1 << 64) & WORD


def _rotated(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & WORD


def in_one_bin(count: int) -> np.ndarray:
    """Numbers of one bin that nobody has crafted further."""
    rng = np.random.default_rng(7)
    many = rng.integers(-(2**63), 2**63 - 1, 300 * count)
    return many[xxhash64([pa.array(many)]) >> np.uint64(56) == 0xC0][:count]


def probes(slots: np.ndarray) -> float:
    """The mean number of slots that a search for a key that is not there looks at, by the lengths of the runs."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], slots != 0, [0]])))
    runs = edges[1::2] - edges[::2]
    return float(1 + (runs * (runs + 1) / 2).sum() / slots.size)


def probes_of_a_batch(folder, ids: np.ndarray) -> tuple[float, float]:
    """Those of the overlay of a batch with these keys, and of the base after it."""
    holding = Holding.open(folder, [COUNTS], BINS)
    holding.install(np.arange(BINS), [], 0)
    table, keys = holding.begin()["counts"], NUMBERS.encode([pa.array(ids)])
    table.mark(table.touch(keys))
    holding.advance(1, {"counts": table.delta()})
    base = holding.bases["counts"]
    overlay = KeyRows(COUNTS, BINS, base.secret)
    overlay.touch(keys)
    assert overlay.size == ids.size
    bin_ = int(overlay.bins[0])
    capacity, start = base.directory[bin_, CAPACITY], base.directory[bin_, START]
    return probes(overlay.slots), probes(base.extents.words[start : start + capacity + capacity // 3 + 1])


def test_crafted_numbers_take_as_few_probes_as_any_others_of_their_bin(tmp_path):
    ids = crafted(KEYS)
    hashes = xxhash64([pa.array(ids)])
    assert np.unique(ids).size == KEYS
    assert np.unique(hashes >> np.uint64(24)).tolist() == [0xC0FFEE1234]
    overlay, base = probes_of_a_batch(tmp_path / "crafted", ids)
    plain_overlay, plain_base = probes_of_a_batch(tmp_path / "plain", in_one_bin(KEYS))
    assert overlay < 1.5 * plain_overlay < 10
    assert base < 1.5 * plain_base < 20


@pytest.mark.parametrize("share", [2, 16, 256], ids=lambda share: f"1/{share} of the bins")
def test_a_batch_of_few_bins_takes_as_few_probes_as_one_of_all(tmp_path, share):
    """A worker has some of the bins only: the overlay's slots are where its keys are."""
    rng = np.random.default_rng(share)
    many = rng.integers(-(2**63), 2**63 - 1, 8 * KEYS)
    bins = (xxhash64([pa.array(many)]) >> np.uint64(56)).astype(np.int64)
    some, every = many[bins < BINS // share], many[: np.count_nonzero(bins < BINS // share)]
    mine, _ = probes_of_a_batch(tmp_path / "some", some)
    others, _ = probes_of_a_batch(tmp_path / "every", every)
    assert mine < 2 * others < 10


def test_slots_are_by_siphash_1_3_as_python_has_it():
    """Python's own hash of bytes is SipHash-1-3 under a secret that its seed gives; an oracle of another make."""
    assert sys.hash_info.algorithm == "siphash13"
    texts = [bytes((7 * i + length) % 256 for i in range(length)) for length in range(1, 40)]
    words = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    told = [text.hex() for text in texts] + [(word & WORD).to_bytes(8, "little").hex() for word in words]
    script = "import sys; print(*[hash(bytes.fromhex(each)) for each in sys.argv[1:]])"
    for seed in (0, 17):
        command = [sys.executable, "-c", script, *told]
        answer = subprocess.run(command, env={"PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True)
        expected = np.array([int(each) for each in answer.stdout.split()], np.int64).view(np.uint64)
        secret, spread = _secret_of_python(seed), np.zeros(len(texts), np.uint64)
        found = np.empty(len(texts), np.uint64)
        data, offsets = np.frombuffer(b"".join(texts), np.uint8).copy(), np.cumsum([0, *map(len, texts)])
        sizes = [-(-len(text) // 8) for text in texts]
        heap, references = np.empty(sum(sizes), np.int64), np.empty(len(texts), np.int64)
        pack_keys(offsets, data, spread, 0, secret, heap, references, found)
        padded = b"".join(text.ljust(8 * size, b"\0") for text, size in zip(texts, sizes, strict=True))
        assert heap.tobytes() == padded
        assert references.tolist() == [
            at << 32 | len(text) for at, text in zip(np.cumsum([0, *sizes]).tolist(), texts, strict=False)
        ]
        assert found.tolist() == expected[: len(texts)].tolist()
        found = np.empty(len(words), np.uint64)
        hash_words(np.array(words), spread[: len(words)], 0, secret, found)
        assert found.tolist() == expected[len(texts) :].tolist()


def _secret_of_python(seed: int) -> np.ndarray:
    """How Python makes its secret of a seed; none for seed 0."""
    octets, x = bytearray(), seed
    for _ in range(16):
        x = (x * 214013 + 2531011) & 0xFFFFFFFF
        octets.append(x >> 16 & 0xFF if seed else 0)
    return np.frombuffer(bytes(octets), np.uint64).copy()


@pytest.mark.parametrize("bits", [0, 1, 8, 16])
def test_the_hash_begins_with_the_public_bits_of_the_bin(bits):
    words = np.arange(1000)
    spread = xxhash64([pa.array(words)])
    alone, both = np.empty(1000, np.uint64), np.empty(1000, np.uint64)
    secret = np.array([3, 4], np.uint64)
    hash_words(words, spread, 0, secret, alone)
    hash_words(words, spread, bits, secret, both)
    keyed = (1 << (64 - bits)) - 1
    assert [each & keyed for each in both.tolist()] == [each >> bits for each in alone.tolist()]
    assert [each & ~keyed for each in both.tolist()] == [each & ~keyed for each in spread.tolist()]


def test_processes_of_a_folder_share_its_secret_and_other_folders_have_others(tmp_path):
    ids = np.arange(1000)
    holding = Holding.open(tmp_path / "a", [COUNTS], BINS)
    holding.install(np.arange(BINS), [], 0)
    table = holding.begin()["counts"]
    table.mark(table.touch(NUMBERS.encode([pa.array(ids)])))
    holding.advance(1, {"counts": table.delta()})
    mine = holding.bases["counts"].secret.tolist()
    rows = holding.extract(np.arange(BINS))
    holding.close()
    script = (
        "import sys, numpy as np, pyarrow as pa\nfrom pathlib import Path\n"
        "from meander.route.keys import KeyType\nfrom meander.state.holding import Holding\n"
        "from meander.state.spec import TableSpec\n"
        "key = KeyType((('k', pa.int64()),))\n"
        "holding = Holding.open(Path(sys.argv[1]), [TableSpec('counts', key, (('n', pa.int64()),))], 256)\n"
        "table = holding.begin()['counts']\n"
        "table.touch(key.encode([pa.array(np.arange(2000))]))\n"
        "print(table.present.sum())\n"
        "print(*holding.bases['counts'].secret.tolist())"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a")]
    answer = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    found, *theirs = map(int, answer.stdout.split())
    assert found == 1000
    assert theirs == mine
    # Rows move to a folder of another secret: it enters them by its own.
    other = Holding.open(tmp_path / "b", [COUNTS], BINS)
    other.install(np.arange(BINS), [rows], 1)
    assert other.bases["counts"].secret.tolist() != mine
    table = other.begin()["counts"]
    table.touch(NUMBERS.encode([pa.array(np.arange(2000))]))
    assert table.present.sum() == 1000
