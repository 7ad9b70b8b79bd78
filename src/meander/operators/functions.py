"""What a user's function is called, how many arguments it takes, and in which form it wants its rows."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from meander.errors import InvalidOption
from meander.options import kind
from meander.state.frames import require_pandas

PLAIN, PANDAS, ARROW = "plain", "pandas", "arrow"

_FRAMES = re.compile(r"\b(pandas|pd|pyarrow|pa|polars|pl)\.|\bDataFrame\b|\bRecordBatch\b")


def who_of(function: object, verb: str) -> str:
    """How messages name a function that was given to an operator."""
    return f"the function {getattr(function, '__name__', None) or type(function).__name__!r} of {verb}"


def check_function(function: object, verb: str, arguments: Sequence[str]) -> None:
    """Refuse what cannot be called with these arguments."""
    example = f"f({', '.join(arguments)})"
    if not callable(function):
        raise InvalidOption(f"{verb} takes a function {example}, not {kind(function)}")
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        taken = str(signature).partition(" -> ")[0]
        raise InvalidOption(f"{who_of(function, verb)} takes {taken}; write it as {example}") from None


def form_of(
    function: Callable[..., Any], word: object, verb: str, position: int, forms: Sequence[str], default: str
) -> str:
    """The form of the rows: the word, else what the argument at this position is annotated with, else the default."""
    who = who_of(function, verb)
    if word is not None:
        if not isinstance(word, str) or word not in forms:
            raise InvalidOption(f"rows is {word!r}; it is one of {', '.join(forms)}")
        form = word
    else:
        form = _annotated(function, position, who, forms) or default
    if form == PANDAS:
        require_pandas(who)
    return form


def _annotated(function: Callable[..., Any], position: int, who: str, forms: Sequence[str]) -> str | None:
    signature = _signature(function)
    parameters = [] if signature is None else list(signature.parameters.values())
    if position >= len(parameters) or parameters[position].annotation is inspect.Parameter.empty:
        return None
    name = parameters[position].name
    text = _text_of(parameters[position].annotation)
    if re.fullmatch(r"((pandas|pd)\.(.*\.)?)?DataFrame", text):
        return PANDAS
    # Beside plain rows a batch is a word too many: there rows in Arrow are a Table.
    arrow = "Table" if PLAIN in forms else "(Table|RecordBatch)"
    if re.fullmatch(rf"(pyarrow|pa)\.(.*\.)?{arrow}", text):
        return ARROW
    if _FRAMES.search(text):
        known = {PLAIN: "list", PANDAS: "pd.DataFrame", ARROW: "pa.Table"}
        can_be = ", ".join(known[form] for form in forms)
        raise InvalidOption(f"{who} annotates {name} with {text}, in which rows do not come; write one of {can_be}")
    return None


def _signature(function: Any) -> inspect.Signature | None:
    """The arguments of a function; None for one of those written in C that do not tell."""
    try:
        return inspect.signature(function, eval_str=True)
    except (TypeError, ValueError):
        return None
    except Exception:  # an annotation that names what is not there
        return inspect.signature(function)


def _text_of(annotation: object) -> str:
    """An annotation as its text: the module and name of a class, the words of everything else."""
    if isinstance(annotation, type) and not hasattr(annotation, "__origin__"):
        return f"{annotation.__module__}.{annotation.__qualname__}"
    return str(annotation).strip("'\" ")
