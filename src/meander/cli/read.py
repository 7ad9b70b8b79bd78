"""From files and options of the command line to values; what cannot be read is said in one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meander.errors import InvalidOption, InvalidProblem


def json_from(source: str, what: str) -> Any:
    """Read JSON from a file, or from standard input where the name is `-`."""
    name = "standard input" if source == "-" else source
    try:
        if source == "-":
            if sys.stdin is None or sys.stdin.isatty():
                raise InvalidProblem(f"give {what} as a file or on standard input; --help shows its form")
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        else:
            text = Path(source).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidProblem(f"cannot read {name}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise InvalidProblem(f"{name} is not UTF-8 text; give {what} as JSON") from None
    if not text.strip():
        raise InvalidProblem(f"{name} is empty; give {what} as JSON")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidProblem(
            f"{name} is not JSON: {error.msg.lower()} at line {error.lineno}, column {error.colno}"
        ) from None
    except (RecursionError, ValueError):
        raise InvalidProblem(f"{name} is nested too deeply or holds a number that is too long") from None


def options_from(assignments: Sequence[str]) -> dict[str, Any]:
    """Turn `name=value` pairs into options; a value is read as JSON where it is JSON, else taken as text."""
    options: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise InvalidOption(f"option {assignment!r} has no value; write it as name=value, such as seed=7")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def numbers_from(name: str, text: str, most: int) -> list[int]:
    """Turn numbers with commas between them into a list; each is at least 1 and at most `most`."""
    parts = text.split(",")
    if not all(each.strip().isdecimal() and 1 <= int(each) <= most for each in parts):
        raise InvalidOption(f"{name} is {text!r}; write whole numbers from 1 to {most} with commas, such as 2,4,3")
    return [int(each) for each in parts]
