"""Compiled inner loops: Numba, with its machine code kept on disk between processes.

Importing this module imports Numba (about half a second), so only modules of kernels do, and those are imported
by the functions that call them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

Args = ParamSpec("Args")
Result = TypeVar("Result")


def kernel(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Compile a function of arrays and numbers when it is first called."""
    try:
        compiled: object = numba.njit(cache=True)(function)
    except RuntimeError:
        # Nowhere to write: neither the package's folder nor the user's cache. It costs a compilation per process.
        compiled = numba.njit(function)
    return cast(Callable[Args, Result], compiled)
