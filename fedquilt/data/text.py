"""Text and its owners: plays by role, comments by user; sequences of tokens and what follows each of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .cache import Raw
from .columns import Corrupt

PADDING, UNKNOWN = 0, 1
# The characters of the plays.  Number 0 is padding, which is neither trained on nor scored.
LETTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def plays(path: Path, length: int) -> Raw:
    """Plays, as ``ROLE:`` and what the role says, with a blank line after it: next-character prediction by role.

    All that a role says, in order, cut in sequences of ``length`` characters that do not overlap; the
    target of each character is the one after it.
    """
    file = f"{path.parent.name}/{path.name}"
    number = {c: i for i, c in enumerate(LETTERS, 1)}
    said: dict[str, list[str]] = {}
    line = 1
    for block in _text(path, file).split("\n\n"):
        head, _, speech = block.strip("\n").partition("\n")
        at = line + len(block) - len(block.lstrip("\n"))
        line += block.count("\n") + 2
        if not head:
            continue
        if not head.endswith(":"):
            raise Corrupt(f"{file}, line {at}: a speech begins with a role and a colon, not with {head[:40]!r}")
        for down, words in enumerate((head, *speech.split("\n"))):
            strange = next((c for c in words if c not in number), None)
            if strange is not None:
                raise Corrupt(
                    f"{file}, line {at + down}: {strange!r} is none of the {len(LETTERS)} characters of the plays"
                )
        said.setdefault(head[:-1], []).append(speech)
    rows, owners = [], []
    for role in sorted(said):
        codes = [number[c] for c in "\n".join(said[role])]
        for begin in range(0, len(codes) - 1, length):
            rows.append(_padded(codes[begin : begin + length + 1], length + 1))
            owners.append(role)
    if not rows:
        raise Corrupt(f"{file} holds no speech")
    return _raw(rows, owners, torch.uint8, {file: len(rows)})


def comments(paths: Sequence[Path], length: int, vocabulary: int) -> Raw:
    """Comments in LEAF's JSON: next-word prediction by user.

    The vocabulary is the most frequent words (0 is padding, 1 a word that is not among them).
    """
    found = []
    for path in paths:
        file = f"{path.parent.name}/{path.name}"
        found += [(file, user, x, y) for user, data in _users(path, file) for x, y in _sequences(data, user, file)]
    counted = Counter(w for _, _, _, y in found for w in y if w not in ("<PAD>", "<UNK>"))
    words = sorted(counted, key=lambda w: (-counted[w], w))[: vocabulary - 2]
    number = {"<PAD>": PADDING} | {w: i for i, w in enumerate(words, 2)}
    rows, owners, files = [], [], Counter[str]()
    for file, user, x, y in found:
        if len(x) != len(y) or len(x) > length:
            raise Corrupt(f"{file}: user {user} has a sequence of {len(x)} words with {len(y)} targets, not {length}")
        rows.append([_padded([number.get(w, UNKNOWN) for w in some], length) for some in (x, y)])
        owners.append(user)
        files[file] += 1
    if not rows:
        raise Corrupt(f"{paths[0].parent.name}/{paths[0].name} holds no comment")
    both = torch.tensor(rows)
    names = sorted(set(owners))
    at = {o: i for i, o in enumerate(names)}
    groups = torch.tensor([at[o] for o in owners])
    order = groups.argsort(stable=True)
    said, after, whose = both[order, 0].to(torch.int32), both[order, 1], groups[order]
    return Raw(said, after, whose, whose.clone(), tuple(names), files=dict(files) if len(files) == 1 else {})


def _raw(rows: list[list[int]], owners: list[str], kind: torch.dtype, files: dict[str, int]) -> Raw:
    """Sequences that are one longer than a sample: all but the last token, and all but the first."""
    both = torch.tensor(rows)
    names = list(dict.fromkeys(owners))
    at = {o: i for i, o in enumerate(names)}
    groups = torch.tensor([at[o] for o in owners])
    return Raw(both[:, :-1].to(kind), both[:, 1:].clone(), groups, groups.clone(), tuple(names), files=files)


def _padded(codes: list[int], length: int) -> list[int]:
    return codes + [PADDING] * (length - len(codes))


def _text(path: Path, file: str) -> str:
    try:
        return path.read_text(encoding="utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise Corrupt(f"{file}, line {line}: it is not text ({error.reason})") from error


def _users(path: Path, file: str) -> list[tuple[str, Any]]:
    try:
        said = json.loads(_text(path, file))
        return [(str(user), said["user_data"][user]) for user in said["users"]]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, Corrupt):
            raise
        raise Corrupt(f"{file} is not LEAF's JSON, an object with users and user_data ({error})") from error


def _sequences(data: Any, user: str, file: str) -> list[tuple[list[str], list[str]]]:
    """The sequences of all comments of a user, and their targets."""
    try:
        pairs = [
            ([str(w) for w in x], [str(w) for w in y])
            for comment, target in zip(data["x"], data["y"], strict=True)
            for x, y in zip(comment, target["target_tokens"], strict=True)
        ]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Corrupt(
            f"{file}: the comments of user {user} are not lists of sequences with targets ({error})"
        ) from error
    if not pairs:
        raise Corrupt(f"{file}: user {user} has no comment")
    return pairs
