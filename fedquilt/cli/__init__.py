"""The command line.  What a person got wrong ends in one sentence and exit code 2, never in a traceback.

Nothing here imports torch before a command needs it: ``--help``, ``--version`` and ``list`` never do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..schema import BadSetting, nearest

if TYPE_CHECKING:
    from cyclopts import CycloptsError

__all__ = ["main"]

FAILED, WRONG, INTERRUPTED = 1, 2, 130


def main(words: Sequence[str] | None = None) -> int:
    """Do what the words say (None: those of the process) and return the exit code."""
    from cyclopts import CycloptsError

    from .app import app

    given = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in given
    given = [w for w in given if w != "--debug"]
    try:
        made, tokens = app(given)
        code = made(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except CycloptsError as error:
        return _say(_plain(error), WRONG)
    except BadSetting as error:
        return _say(str(error), WRONG)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on, such as `head`
        return FAILED
    except KeyboardInterrupt as stop:
        return _say(str(stop) or "stopped", INTERRUPTED)
    except Exception as error:
        if debug:
            raise
        reason = " ".join(str(error).split()) or "no reason given"
        return _say(f"{type(error).__name__}: {reason} (--debug shows where)", FAILED)


def _plain(error: CycloptsError) -> str:
    """What is wrong with the words, in one sentence."""
    from cyclopts.exceptions import UnknownCommandError, UnknownOptionError, UnusedCliTokensError

    if isinstance(error, UnknownOptionError):
        word = error.token.keyword or error.token.value
        known = [n for a in error.argument_collection or () for n in a.names]
        return f"no option is called {word}; {nearest(word, known)}`--help` lists all"
    if isinstance(error, UnknownCommandError):
        names, word = list(error.app or ()), (error.unused_tokens or ["?"])[0]
        if word.startswith("-"):
            return f"no option is called {word}; {nearest(word, names)}`--help` lists all"
        known = [n for n in names if not n.startswith("-")]
        return f"no command is called {word!r}; {nearest(word, known)}There are: {', '.join(known)}"
    if isinstance(error, UnusedCliTokensError):
        return f"too many words: {' '.join(error.unused_tokens or [])}"
    return " ".join(str(error).split())


def _say(text: str, code: int) -> int:
    print(f"fedquilt: {text}", file=sys.stderr)
    return code
