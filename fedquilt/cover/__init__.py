"""The algebra of partial models: take a patch, put it back, average many.

A :class:`Cover` says which coordinates of a parameter dict an exchange speaks about.  Three
functions replace every hand-written sub-model utility, and ``tests/laws`` proves them::

    put(p, c, take(p, c)) == p            take(put(p, c, s), c) == s
    mean(p, [(take(p, c), c, n), ...]) == p, bit for bit;  mean(p, []) == p

Parameters are a flat ``dict[str, Tensor]``, buffers included, and are never changed in place.
"""

from .algebra import mean, put, take
from .axes import Along, Axes, Axis, Params, Place, Shapes, count_units, group_sizes, laid, places
from .cover import Cover
from .span import Span, block, masked

__all__ = [
    "Along",
    "Axes",
    "Axis",
    "Cover",
    "Params",
    "Place",
    "Shapes",
    "Span",
    "block",
    "count_units",
    "group_sizes",
    "laid",
    "masked",
    "mean",
    "places",
    "put",
    "take",
]
