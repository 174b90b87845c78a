"""When questions come: what the windows before have shown of it, and how many are still to come.

A day has its hours. A pacer that took the mean rate since midnight for the rest of the day would spend the
total in the morning, and one whose last window was watched for its last minutes alone, or was a quiet one,
would do so the day after. So a window counts its questions in parts, and knows which of them it has watched:
not those before a pacer was first asked, nor those in which questions were turned away. What it has not
watched is what the windows before say.

How many questions this window has, beside those that came in the same parts before, is believed to be either
about as many or a number of its own; what has come decides between the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["GUESS", "PARTS", "Arrivals", "Known", "written"]

PARTS = 24

#: Questions of a window of which nothing is known, believed like a tenth of a window that was seen.
GUESS, _TRUST = 100.0, 0.1
#: A window is like the last ones: so likely, and then its number varies as if so many questions had told it.
_ALIKE, _ALIKE_QUESTIONS = 0.8, 30.0
#: Or it has a number of its own, of which less than one question tells.
_OTHER_QUESTIONS = 0.5
#: A part that was watched for a smaller share says nothing.
_WATCHED = 0.5

#: Questions in each part; below 0: nobody knows. Empty: no window has been seen.
Known = tuple[float, ...]


@dataclass(frozen=True)
class Arrivals:
    """The questions of one window.

    Parameters
    ----------
    usual : tuple of float
        Questions that windows before had in each part, below 0 where none was watched; empty where there
        were none.
    seen : tuple of float
        Those of this window so far; below 0 where it was not watched.
    opened : float
        Share of the window that was over when it was first watched.
    """

    usual: Known = ()
    seen: Known = (0.0,) * PARTS
    opened: float = 0.0

    @classmethod
    def read(cls, usually: str, came: str, opened: float) -> Arrivals:
        """As they are kept: numbers with spaces between them, nothing where there are none."""
        usual, seen = (tuple(map(float, text.split())) for text in (usually, came))
        return cls(usual, seen or (0.0,) * PARTS, opened)

    @property
    def known(self) -> float:
        """Questions of a window, as those before tell; 0: there was none."""
        return sum(self._filled)

    @property
    def _filled(self) -> Known:
        """What is usual, with the mean part in place of those that nobody has watched."""
        watched = [count for count in self.usual if count >= 0]
        mean = sum(watched) / max(1, len(watched))
        return tuple(mean if count < 0 else count for count in self.usual)

    def came(self, now: float, *, turned_away: bool) -> Known:
        """What was seen, with a question that comes now.

        Where questions are turned away, the part is as if nobody had watched: some never come back, others
        again and again.
        """
        part = _part(now)
        if self.seen[part] < 0:
            return self.seen
        one = -1.0 if turned_away else self.seen[part] + 1
        return (*self.seen[:part], one, *self.seen[part + 1 :])

    def taught(self) -> Known:
        """What the next window expects: as far as this one was watched, its mean with what it expected."""
        first = _part(self.opened)
        watched = first + 1 - PARTS * self.opened
        told = []
        for part, count in enumerate(self.seen):
            if count < 0 or part < first or (part == first and watched < _WATCHED):
                told.append(-1.0)
            else:
                told.append(count / watched if part == first else count)
        before = self.usual or (-1.0,) * PARTS
        counts = tuple(_mean(was, count) for was, count in zip(before, told, strict=True))
        return counts if sum(counts) > -PARTS else ()

    def coming(self, now: float, horizon: int | None) -> float:
        """Questions that are still to come.

        Parameters
        ----------
        now : float
            Share of the window that is over.
        horizon : int or None
            Questions that somebody expects of a whole window, which is then believed like one that was seen.
        """
        usual = self._filled
        known = sum(usual)
        total = float(horizon or known or GUESS)
        after, least, most, came = ([0.0, 0.0] for _ in range(4))
        for part in range(PARTS):
            told = bool(self.usual) and self.usual[part] >= 0  # of the others the number is a guess
            over = min(max(PARTS * now - part, 0.0), 1.0)
            count = usual[part] if usual else 0.0
            rate = total * (count + 1) / (known + PARTS)
            after[told] += rate * (1 - over)
            if self.seen[part] >= 0:
                watched = max(0.0, over - min(max(PARTS * self.opened - part, 0.0), 1.0))
                came[told] += self.seen[part]
                most[told] += rate * watched
                least[told] += (total * count / known if known and told else rate) * watched
        # That one came more or less in every part is no news.
        before = [min(max(c, min(lo, hi)), max(lo, hi)) for c, lo, hi in zip(came, least, most, strict=True)]
        trust = total * (1.0 if horizon else _TRUST)
        guessed, more = ((trust + came[told]) / (trust + before[told]) for told in (False, True))
        if not horizon:
            more = _busier(came[True], before[True])
        return after[False] * guessed + after[True] * more


def written(known: Known) -> str:
    """As `Arrivals.read` reads it."""
    return " ".join(f"{count:.9g}" for count in known)


def _mean(before: float, now: float) -> float:
    """Of two counts; of one where nobody knows the other."""
    return max(before, now) if min(before, now) < 0 else (before + now) / 2


def _part(share: float) -> int:
    return min(max(int(PARTS * share), 0), PARTS - 1)


def _busier(came: float, expected: float) -> float:
    """So many times as many questions as were expected are believed to come."""
    told = []
    for likely, trust in ((_ALIKE, _ALIKE_QUESTIONS), (1 - _ALIKE, _OTHER_QUESTIONS)):
        told.append((math.log(likely) + _likelihood(trust, came, expected), trust))
    best = max(chance for chance, _ in told)
    weights = [math.exp(chance - best) for chance, _ in told]
    rates = [(trust + came) / (trust + expected) for _, trust in told]
    return sum(weight * rate for weight, rate in zip(weights, rates, strict=True)) / sum(weights)


def _likelihood(trust: float, came: float, expected: float) -> float:
    """Logarithm: a Poisson number whose rate is itself uncertain (negative binomial), up to a constant."""
    whole = math.log(trust + expected)
    return math.lgamma(trust + came) - math.lgamma(trust) + trust * (math.log(trust) - whole) - came * whole
