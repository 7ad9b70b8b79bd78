"""From a key to its bin: the same hash as in the JVM, and typed keys as plain arrays.

Pure: Arrow columns in, NumPy arrays out. The package depends on no state, operator or Spark.
"""

from __future__ import annotations

from meander.route.hashing import bins_of, bits_of, checksum, xxhash64
from meander.route.keys import Keys, KeyType

__all__ = ["KeyType", "Keys", "bins_of", "bits_of", "checksum", "xxhash64"]
