"""What of a policy holds for an allocation: one total over candidates that were found before.

Nobody searches and nobody answers there, so order, search and most limits have no effect, which is said; what
would change what each question reads, and cannot be kept, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from mio_rag.control.composed.parts import Order, Search
from mio_rag.control.composed.policy import Policy
from mio_rag.errors import InputError
from mio_rag.selection.selector import Selector

__all__ = ["Allocating", "allocating"]


@dataclass(frozen=True)
class Allocating:
    """An allocation as a policy wants it.

    Parameters
    ----------
    selector : Selector
        Without a price of a token, which is what the total decides.
    total_tokens : int
        Of evidence, of all questions together.
    ceiling : int
        Most tokens of a question.
    unused : tuple of str
        What of the policy has no effect, and why, in words.
    """

    selector: Selector
    total_tokens: int
    ceiling: int
    unused: tuple[str, ...]


def allocating(policy: Policy, base: Selector, total_tokens: int | None = None) -> Allocating:
    """Read a policy as that of an allocation.

    Parameters
    ----------
    base : Selector
        Whose solver and time limit are taken.
    total_tokens : int, optional
        Instead of the policy's price.

    Raises
    ------
    InputError
        With everything that an allocation cannot keep.
    """
    problems = []
    if policy.amount.by != "price":
        problems.append(
            f'amount: by = "{policy.amount.by}" decides for each question alone, and an allocation shares '
            'one total: set by = "price"'
        )
    if policy.reading.by != "program":
        problems.append(
            f'reading: by = "{policy.reading.by}" does not look at a price, by which an allocation shares a '
            'total: set by = "program"'
        )
    if policy.repetition.by != "never":
        problems.append(
            f'repetition: by = "{policy.repetition.by}" searches again, and an allocation has what was '
            'found: set by = "never"'
        )
    price, total = policy.price, policy.price.total if total_tokens is None else total_tokens
    if total is None:
        problems.append("price: an allocation needs a total: give [price] total, or --total-tokens")
    elif total_tokens is None and price.per is not None:
        problems.append(
            f"price: a total every {price.per} is for questions as they come: give --total-tokens for these"
        )
    if problems:
        raise InputError(problems)
    assert total is not None
    selector = policy.selector(0.0, base)
    return Allocating(selector, total, policy.limits.evidence_tokens, tuple(_unused(policy, total_tokens)))


def _unused(policy: Policy, total_tokens: int | None) -> list[str]:
    told = []
    if total_tokens is not None:
        told.append("price: the total of this allocation stands instead")
    elif policy.price.state is not None:
        told.append("price.state: an allocation knows all questions, and needs no pacer")
    if policy.order != Order():
        told.append("order: nobody answers")
    if policy.search != Search():
        told.append("search: candidates were found before")
    if policy.models:
        told.append(f"models {', '.join(policy.models)}: no model is asked")
    told.append("limits but evidence_tokens: nobody answers")
    return told
