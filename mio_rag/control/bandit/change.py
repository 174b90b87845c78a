"""Has something changed? The test of Page and Hinkley, on both sides."""

from __future__ import annotations

__all__ = ["PageHinkley"]


class PageHinkley:
    """Watches a sequence of numbers for a change of their mean.

    Source: Page, "Continuous inspection schemes", Biometrika 1954; Hinkley, "Inference about the change-point
    from cumulative sum tests", Biometrika 1971.

    Parameters
    ----------
    tolerance : float
        Changes of the mean that are no change, >= 0.
    threshold : float
        Sum of deviations at which a change is reported, > 0.
    """

    def __init__(self, tolerance: float, threshold: float) -> None:
        self.tolerance, self.threshold = tolerance, threshold
        self.restart()

    def restart(self) -> None:
        """Forget what was seen."""
        self.count, self.mean = 0, 0.0
        self.up = self.down = 0.0

    def change(self, value: float) -> bool:
        """Take in a number; whether the mean has changed. It goes on reporting until `restart`."""
        self.count += 1
        self.mean += (value - self.mean) / self.count
        deviation = value - self.mean
        self.up = max(0.0, self.up + deviation - self.tolerance)
        self.down = max(0.0, self.down - deviation - self.tolerance)
        return max(self.up, self.down) > self.threshold

    def to_list(self) -> list[float]:
        """All of it, as numbers."""
        return [self.count, self.mean, self.up, self.down]

    def set_list(self, kept: list[float]) -> None:
        """Become what `to_list` gave."""
        self.count, self.mean, self.up, self.down = int(kept[0]), *kept[1:]
