"""What a day's questions are believed to take: a forecast that holds in whatever order they come.

Without one a pacer takes the questions that it has seen for the rule, which fails where a day begins with all
easy or all hard ones. With one it knows what the day takes as a whole, so that what was not spent at first is
not given away: it is still to come. Somebody says it, or the last window has shown it. But no day takes
exactly what was forecast. So it is asked of what was seen how well that fits questions in random order, of a
day as days differ: by its mean, and by its trend. As far as it fits, the day's own mean is learned from it;
as far as it does not, the order is to blame, and the forecast holds. But an order shows: what is far from the
mean at first comes back to it. Where there is no such trend, a forecast that is far off says nothing of the
day, and is dropped for its rest: the price follows what is spent. `python -m benchmarks pacing` measures it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mio_rag.formulations.numbers import is_setting

#: Tokens of a question are taken to fall with this power of its price. It is 1.2 where they are few (128 in
#: the mean), .3 where they are many (512).
_SPENT = 1.0
#: And the price moves as if it were this: one that moves too far spoils more than one that moves too little,
#: in any order of the study's other questions.
_CAUTION = 1.5
#: The mean question of the rest takes at least and at most so many times that of the day.
_LEAST, _MOST = 0.5, 2.0
#: Standard deviations as shares of the mean: of days; of questions, those of the study's other ones.
_DAYS, _QUESTIONS = 0.15, 1.0
#: So many questions of a window tell what the next one takes; the mean of fewer is off by more than days are.
_ENOUGH = 50
#: How likely what was seen is in no random order, where the best fit of a random one is 1.
_SORTED = 0.011
#: How likely a forecast says nothing of the day, compared with a right one of a day in some order.
_WORTHLESS = 0.1
#: How far the mean seen, a, is from that of the forecast, b, where no trend explains it: (a - b) / (a + b),
#: its standard deviation, and what the noise of questions adds to the variance.
_PHASES, _PHASE_NOISE = 0.12, 1.44
#: A forecast is dropped where it is so many times as likely that it says nothing; and where less is spent
#: than it says, not before so many questions were seen, as a share of those to come.
_CERTAIN, _PART = 3.0, 1.0
#: How far from the forecast's price, as a factor, tokens are trusted to follow the power above.
_FAR = 2.0
#: And how far from it a price counts in a window's mean: where nobody would read more, it falls to nearly 0.
_COUNTED = 8.0
#: Who may spend so many tokens finds a passage that fits.
_ROOM = 1000
#: Tokens of the mean question: beyond it, squares of what is seen could be infinite.
_SMALLEST = 1e-6
#: Of an exponent.
_LARGEST = 1000.0


@dataclass(frozen=True)
class Seen:
    """The questions of a window so far, by what each would have spent at the price of its forecast.

    effort, course, squares: the sum of what they spent, of that times the number of those before each, and of
        its squares.
    """

    questions: int = 0
    effort: float = 0.0
    course: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """Of at least one question."""
        return self.effort / self.questions

    def trend(self, spread: float | None = None) -> float:
        """How far they rise or fall, in standard deviations of what they would in random order.

        spread: standard deviation of a question; by default that of those seen.
        """
        n = self.questions
        if spread is None:
            spread = math.sqrt(max(0.0, self.squares / n - self.mean**2))
        slope = self.course - (n - 1) / 2 * self.effort
        return slope / (spread * math.sqrt((n**3 - n) / 12)) if n > 1 and spread > 0 else 0.0


@dataclass(frozen=True)
class Forecast:
    """Questions take so many tokens in the mean, at this price of a token.

    price: above 0.
    mean_tokens: above 0: what `price_for` found, or the last window.
    """

    price: float
    mean_tokens: float

    @classmethod
    def learned(cls, reference: float, effort: float, questions: int, price: float) -> Forecast | None:
        """What a window has shown.

        reference: the price at which efforts were counted.
        effort: of its questions, their sum.
        price: its mean price, at which the next window begins.

        Returns None where so few questions tell too little, or spent nothing.
        """
        if questions < _ENOUGH or effort <= 0:
            return None
        return cls(price, effort / questions * _at_most(_FAR, reference / price) ** _SPENT)

    def effort(self, price: float, tokens: int, allowed: int) -> float:
        """What a question that spent `tokens` at `price` would have spent at the price of the forecast.

        allowed: where so few were allowed that they may have been too few, it counts as a mean question at
            least.
        """
        share = _at_most(_FAR, price / self.price) ** _SPENT
        told, enough = float(tokens * share), _MOST * self.mean_tokens
        unlimited = allowed * share >= enough or allowed >= max(min(enough, _ROOM), 2 * tokens)
        return told if unlimited else max(told, self.mean_tokens)

    def counted(self, price: float) -> float:
        """The logarithm of a price, as it counts in the mean price of a window."""
        return math.log(self.price * _at_most(_COUNTED, price / self.price))

    def price_for(self, seen: Seen, coming: float, left: float, before: float) -> float:
        """The price at which what is left lasts for what is still to come.

        seen: the questions so far.
        coming: questions of the window that are not settled, > 0.
        left: tokens that are not settled, >= 0.
        before: the last price, which follows what is spent: beyond what is known of tokens at other prices it
            decides.
        """
        alike, sorted_, _ = self._chances(seen)
        each = self._rest(seen, coming, alike / (alike + sorted_))
        each = min(max(each, _LEAST * self.mean_tokens), _MOST * self.mean_tokens)
        told = float(self.price * (each * coming / max(left, 1.0)) ** (1 / _CAUTION))
        if told > _FAR * self.price:
            return max(before, _FAR * self.price)
        return told if told >= self.price / _FAR else min(before, self.price / _FAR)

    def refuted(self, seen: Seen, coming: float) -> bool:
        """Whether it is next to certain that it says nothing of this window.

        Where less is spent than was forecast, the tokens are still there, and a day may begin with questions
        that read nothing at all: that takes a part of the window.
        """
        if seen.questions == 0 or (seen.mean < self.mean_tokens and seen.questions < _PART * coming):
            return False
        *others, worthless = self._chances(seen)
        return worthless > _CERTAIN * sum(others)

    def _chances(self, seen: Seen) -> tuple[float, float, float]:
        """Of a forecast day in random order, of one in another order, and of a day that is not forecast.

        Where there is an order, what is far from the mean at first comes back to it, so there is a trend; if
        what was seen is far from the forecast without one, the forecast is to blame.
        """
        if seen.questions == 0:
            return 1.0, _SORTED, 0.0
        ratio, noise = seen.mean / self.mean_tokens, _QUESTIONS**2 / seen.questions
        off = (ratio - 1) ** 2 / (_DAYS**2 + noise)
        fit = math.exp(-(off + seen.trend(_QUESTIONS * self.mean_tokens) ** 2) / 2)
        far = ((ratio - 1) / (ratio + 1)) ** 2 / (_PHASES**2 + _PHASE_NOISE * noise)
        back = max(0.0, seen.trend() * math.copysign(1.0, 1 - ratio))
        refuted = math.exp(min(far - back**2, _LARGEST) / 2)
        return fit, _SORTED, _SORTED * _WORTHLESS * refuted

    def _rest(self, seen: Seen, coming: float, believed: float) -> float:
        """What a question that is still to come takes in the mean.

        believed: how likely they come in no order.
        """
        mean = self.mean_tokens
        if seen.questions == 0:
            return mean
        noise = _QUESTIONS**2 / seen.questions
        as_seen = (_DAYS**2 * seen.mean + noise * mean) / (_DAYS**2 + noise)
        as_forecast = ((seen.questions + coming) * mean - seen.effort) / coming
        return believed * as_seen + (1 - believed) * as_forecast


def _at_most(factor: float, ratio: float) -> float:
    """A ratio that is neither above a factor nor below one over it."""
    return min(max(ratio, 1 / factor), factor)


def forecast_problem(price: Any, mean_tokens: Any) -> str | None:
    """What is wrong with a forecast, in words."""
    if not is_setting(mean_tokens) or not _SMALLEST <= mean_tokens <= 1e12:
        return f"mean_tokens={mean_tokens!r} must be a number above 0: at least {_SMALLEST:g}, at most 1e12"
    if price is None or (is_setting(price) and price == 0):
        return "mean_tokens goes with the price at which questions take so many: give price > 0 as well"
    return None


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

    usual: questions that windows before had in each part, below 0 where none was watched; empty where there
        were none.
    seen: those of this window so far; below 0 where it was not watched.
    opened: share of the window that was over when it was first watched.
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

        now: share of the window that is over.
        horizon: questions that somebody expects of a whole window, which is then believed like one that was
            seen.
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
