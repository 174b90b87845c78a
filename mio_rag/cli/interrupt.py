"""Ctrl-C on the command line: one line and exit code 130, however early it comes.

Imports nothing that takes time: before it is loaded, an interrupt ends in a traceback of Python's own.
"""

import _thread
import os
import signal
import sys
import time

_CALLBACK_SECONDS = 0.02  # until what could raise nothing has returned
_seen = False


def seen() -> bool:
    """Whether an interrupt came; what a library then raises (an import that failed, say) comes of it."""
    return _seen


def watch_early() -> bool:
    """End at once on an interrupt; False where interrupts are ignored, as in a shell's background job."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, end)
    return True


def watch() -> None:
    """Raise `KeyboardInterrupt` on an interrupt from now on, so that what is begun can be put away."""
    signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _unraisable


def watch_no_more(code: int) -> None:
    """End at once, with that exit code, from now on: all is told, and Python only tidies up."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    # An interrupt within the execution of a string makes Python end by the signal, though it was caught; the
    # execution of another string takes that back.
    exec("")


def end(*_: object) -> None:
    """Say so and go, without a word of Python's own."""
    if "--json" in sys.argv:
        _write(1, '{"error": {"kind": "Interrupted", "problems": ["interrupted"]}}\n')
    _write(2, "interrupted\n")
    os._exit(130)


def _interrupt(*_: object) -> None:
    global _seen
    _seen = True
    raise KeyboardInterrupt


def _unraisable(event: "sys.UnraisableHookArgs") -> None:
    """An interrupt that came where Python can raise nothing (in a callback, say) comes once more."""
    if issubclass(event.exc_type, KeyboardInterrupt):
        _thread.start_new_thread(_again, ())
    else:
        sys.__unraisablehook__(event)


def _again() -> None:
    time.sleep(_CALLBACK_SECONDS)
    _thread.interrupt_main()


def _write(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode())
    except OSError:  # nobody listens there
        return
