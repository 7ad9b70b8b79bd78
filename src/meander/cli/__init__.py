"""The command `meander`: JSON in, tables or JSON out. Each command is a few lines around the library.

An error of the user ends with one sentence on standard error and exit code 2, never with a traceback.
Plans, moves and figures come from the other packages; nothing that decides may enter here.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from meander.errors import MeanderError
from meander.store.uri import masked


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 cannot write, 2 wrong input, 130 interrupted."""
    try:
        return _run(arguments)
    except MeanderError as error:
        _complain(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader went away, as `| head` does. Python would complain once more when it closes standard output.
        _forget_output()
        return 0
    except OSError as error:
        _forget_output()
        _complain(f"cannot write the answer: {(error.strerror or str(error)).lower()}")
        return 1


def _run(arguments: Sequence[str] | None) -> int:
    # Imported here so that an interruption while they load is no traceback.
    import typer

    from meander.cli.commands import app

    _say_what_compiles()
    try:
        result = app(args=arguments, prog_name="meander", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "meander"
        _complain(f"{error.format_message().rstrip('.')}; see '{command} --help'")
        return 2
    except typer.Abort:
        return 130


def _say_what_compiles() -> None:
    """One line on standard error where a command waits for kernels to be compiled."""
    logger = logging.getLogger("meander.kernels")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("meander: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(sentence: str) -> None:
    print(f"meander: {masked(sentence)}", file=sys.stderr)
