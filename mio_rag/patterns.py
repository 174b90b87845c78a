"""Regular expressions that are compiled when they are first used: a command uses few of them."""

from __future__ import annotations

import re
import sys
from typing import Any, cast


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern for a constant of a module, as `re.compile` does."""
    return cast("re.Pattern[str]", _Pattern(text, flags, sys._getframe(1).f_globals))


class _Pattern:
    """A pattern that takes its place in the module when it is used."""

    def __init__(self, text: str, flags: int, home: dict[str, Any]) -> None:
        self._given, self._home = (text, flags), home

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(*self._given)
        for key, value in [*self._home.items()]:
            if value is self:
                self._home[key] = compiled
        self.__dict__[name] = getattr(compiled, name)  # for what keeps this object
        return self.__dict__[name]
