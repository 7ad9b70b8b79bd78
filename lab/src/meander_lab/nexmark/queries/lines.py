"""How long a query is: its lines of code, to stand beside those of others."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

HERE = "meander_lab.nexmark.queries."
_SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def lines(path: Path) -> int:
    """The lines of a file that are neither blank nor comments nor docstrings."""
    text = path.read_text()
    spoken: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            spoken.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            spoken.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(spoken)


def shared(path: Path) -> list[Path]:
    """The files of this package that a file imports to run, and that those import."""
    files: list[Path] = []
    wanted = [path]
    while wanted:
        for node in ast.parse(wanted.pop().read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(HERE):
                other = path.with_name((node.module or "").removeprefix(HERE) + ".py")
                if other not in files:
                    files.append(other)
                    wanted.append(other)
    return sorted(files)
