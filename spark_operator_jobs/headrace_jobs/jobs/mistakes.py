"""What went wrong in a user's own code, in one line: where, and what."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["told"]


def told(error: BaseException) -> str:
    """Return `orders.py, line 7: KeyError: 'hostname'`, with the way through other files."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames if _is_a_users(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        places.append((error.filename, error.lineno))
    way = " > ".join(f"{Path(name).name}, line {line}" for name, line in places)
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{way}: {type(error).__name__}: {what}".removeprefix(": ")


def _is_a_users(filename: str) -> bool:
    """Whether it is neither Python's, nor an installed package's, nor ours."""
    path = Path(filename)
    ours = Path(__file__).parent
    is_file = not filename.startswith("<") and path.parent != ours
    return is_file and path.parent.name != "importlib" and "site-packages" not in path.parts
