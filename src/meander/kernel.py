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

LIGHT_CALLS = 3
"""So many small jobs of a kernel are interpreted before it pays to have it compiled."""


class _Thread(threading.local):
    interprets = False


_this_thread = _Thread()


class Kernel(Generic[Args, Result]):
    """A function of arrays and numbers that is compiled when it is first called, also by another kernel."""

    def __init__(self, function: Callable[Args, Result]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._light_calls = 0

    def __call__(self, *args: Args.args, **options: Args.kwargs) -> Result:
        """Run the kernel, compiled."""
        run = self.function if _this_thread.interprets else self.compiled
        return run(*args, **options)

    def lightly(self, *args: Args.args, **options: Args.kwargs) -> Result:
        """Run a small job: by the interpreter the first times, which take less than compiling or loading the kernel.

        Only for kernels that do the same in plain Python: no integers that are meant to overflow.
        """
        if self._light_calls == LIGHT_CALLS or "compiled" in vars(self):
            return self(*args, **options)
        self._light_calls += 1
        before, _this_thread.interprets = _this_thread.interprets, True
        try:
            return self.function(*args, **options)
        finally:
            _this_thread.interprets = before

    @functools.cached_property
    def compiled(self) -> Callable[Args, Result]:
        """The compiled function."""
        from meander.kernel_cache import dispatcher

        return cast(Callable[Args, Result], dispatcher(self.function))

    @property
    def _numba_type_(self) -> Any:
        # Numba asks every name that a kernel uses for this; with it, kernels can call kernels.
        return self.compiled._numba_type_  # type: ignore[attr-defined]


def kernel(function: Callable[Args, Result]) -> Kernel[Args, Result]:
    """Make a kernel of a function of arrays and numbers."""
    return Kernel(function)
