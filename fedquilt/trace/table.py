"""From classes of labels to an axes table: groups of units that can stand for one another, and where they stand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from ..cover import Axis
from .classes import FIXED
from .values import Trace

Part = Axis | int
Row = list[int]  # the class of each entry along an axis


def groups_of(t: Trace) -> list[list[int]]:
    """Classes that stand equally often on the same axes and in the same results, in the order of their first axis."""
    stands: dict[int, Counter[tuple[str, int]]] = defaultdict(Counter)
    for (name, d), row in rows_of(t).items():
        for c in row:
            stands[c][name, d] += 1
    order = list(stands)
    for i, (labels, times) in enumerate(t.seen):
        for c, n in zip(t.classes.of(labels).tolist(), times.tolist(), strict=True):
            if c in stands:
                stands[c]["", i] += n
    alike: dict[frozenset[tuple[tuple[str, int], int]], list[int]] = defaultdict(list)
    for c in order:
        if c != FIXED:
            alike[frozenset(stands[c].items())].append(c)
    return [group for group in alike.values() if len(group) > 1]


def rows_of(t: Trace) -> dict[tuple[str, int], Row]:
    """The classes along each axis of each tensor."""
    return {(name, d): t.classes.of(row).tolist() for name, rows in t.rows.items() for d, row in enumerate(rows)}


def named(groups: Iterable[list[int]], rows: Mapping[tuple[str, int], Row]) -> dict[str, list[int]]:
    """Groups by the layer that makes them: the first whose first axis they are."""
    found: dict[str, list[int]] = {}
    for group in groups:
        places = [at for at, row in rows.items() if group[0] in row]
        tensor = next((name for name, d in places if d == 0), places[0][0])
        name = made = tensor.rpartition(".")[0] or tensor
        n = 1
        while name in found:
            n += 1
            name = f"{made}/{n}"
        found[name] = group
    return found


def laid_out(row: Row, of: Mapping[int, str], groups: Mapping[str, list[int]]) -> tuple[list[Part], set[str]]:
    """The parts of an axis, and the groups whose units do not lie there as a table can say."""
    parts: list[Part] = []
    bad: set[str] = set()
    p = 0
    while p < len(row):
        name = of.get(row[p])
        if name is None or name in bad:
            start = p
            while p < len(row) and (of.get(row[p]) is None or of[row[p]] in bad):
                p += 1
            parts.append(p - start)
            continue
        block = next((i for i in range(1, len(row) - p) if row[p + i] != row[p]), len(row) - p)
        once = [c for c in groups[name] for _ in range(block)]
        repeat = 0
        while row[p : p + len(once)] == once:
            repeat, p = repeat + 1, p + len(once)
        if repeat == 0:
            bad.add(name)
            continue
        parts.append(Axis(name, block, repeat))
    return parts, bad


def table_of(
    t: Trace, left: Mapping[str, str]
) -> tuple[dict[str, tuple[Axis | tuple[Part, ...] | None, ...]], dict[str, str]]:
    """The axes table without the groups of ``left``, and the groups left out with the reason why."""
    rows = rows_of(t)
    groups = named(groups_of(t), rows)
    left = dict(left)
    while True:
        mine = {name: group for name, group in groups.items() if name not in left}
        of = {c: name for name, group in mine.items() for c in group}
        table: dict[str, list[list[Part]]] = defaultdict(list)
        lone: set[str] = set()
        again: dict[str, str] = {}
        for (name, d), row in rows.items():
            parts, bad = laid_out(row, of, mine)
            again |= {g: f"its units lie along axis {d} of {name} in an order that no table says" for g in bad}
            table[name].append(parts)
            if len(parts) == 1 and isinstance(parts[0], Axis):
                lone.add(parts[0].group)
        again |= {
            g: "its units stand only beside others, so their number is not known"
            for g in mine.keys() - lone - again.keys()
        }
        if not again:
            break
        left |= again
    made = {name: tuple(map(along, axes)) for name, axes in table.items()}
    return {name: row for name, row in made.items() if any(row)}, left


def along(parts: list[Part]) -> Axis | tuple[Part, ...] | None:
    """What an axis is made of, in the shortest form."""
    if not any(isinstance(p, Axis) for p in parts):
        return None
    return parts[0] if len(parts) == 1 and isinstance(parts[0], Axis) else tuple(parts)
