"""One price for every token: a total of tokens, split over many questions.

Questions that are known beforehand, and questions that come one by one, pay the same price for a token; it
is as high as the total asks for. Money is turned into that price.
"""

from __future__ import annotations

from mio_rag.allocation.allocate import Allocation, PricePoint, WorkloadPrice, allocate, at_prices, price_for

__all__ = ["Allocation", "PricePoint", "WorkloadPrice", "allocate", "at_prices", "price_for"]
