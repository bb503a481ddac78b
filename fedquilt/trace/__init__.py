"""The generator of axes tables: it follows a net once, and proposes; the two laws then hold the proposal to account.

Nothing here is used when a net is trained.
"""

from .check import broken
from .find import Found, axes_of, batch
from .walk import Untraceable

__all__ = ["Found", "Untraceable", "axes_of", "batch", "broken"]
