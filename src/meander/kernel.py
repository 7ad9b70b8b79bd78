"""Compiled inner loops: Numba, with its machine code kept on disk between processes.

Numba itself takes half a second to import and as long again to load the first kernel, so it is imported when a kernel
is first called, not before.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

Args = ParamSpec("Args")
Result = TypeVar("Result")


class _Thread(threading.local):
    interprets = False


_this_thread = _Thread()


class Kernel(Generic[Args, Result]):
    """A function of arrays and numbers that is compiled when it is first called, also by another kernel."""

    def __init__(self, function: Callable[Args, Result]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._was_called = False

    def __call__(self, *args: Args.args, **options: Args.kwargs) -> Result:
        """Run the kernel, compiled."""
        run = self.function if _this_thread.interprets else self.compiled
        return run(*args, **options)

    def lightly(self, *args: Args.args, **options: Args.kwargs) -> Result:
        """Run a small job: by the interpreter the first time, which takes less than loading the compiled kernel.

        Only for kernels that do the same in plain Python: no integers that are meant to overflow.
        """
        if self._was_called or "compiled" in vars(self):
            return self(*args, **options)
        self._was_called = True
        _this_thread.interprets = True
        try:
            return self.function(*args, **options)
        finally:
            _this_thread.interprets = False

    @functools.cached_property
    def compiled(self) -> Callable[Args, Result]:
        """The compiled function."""
        import numba

        try:
            function: object = numba.njit(cache=True)(self.function)
        except RuntimeError:
            # Nowhere to write: neither the package's folder nor the user's cache. It costs a compilation per process.
            function = numba.njit(self.function)
        return cast(Callable[Args, Result], function)

    @property
    def _numba_type_(self) -> Any:
        # Numba asks every name that a kernel uses for this; with it, kernels can call kernels.
        return self.compiled._numba_type_  # type: ignore[attr-defined]


def kernel(function: Callable[Args, Result]) -> Kernel[Args, Result]:
    """Make a kernel of a function of arrays and numbers."""
    return Kernel(function)
