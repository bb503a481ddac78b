"""Letters as the content of Flower's messages: the packed bytes travel as one array, as they are."""

from __future__ import annotations

import json

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from .letter import PROTOCOL, Broken, Letter

KINDS = {"hello": "query", "work": "train", "score": "evaluate"}  # what a letter asks, and Flower's word for it


def content(letter: Letter) -> RecordDict:
    """The content of a message."""
    out = RecordDict({"fedquilt": ConfigRecord({"protocol": PROTOCOL, "facts": json.dumps(letter.facts)})})
    if letter.blob:
        # one array for all tensors: each array costs Flower objects and calls of their own
        array = Array(dtype="uint8", shape=(len(letter.blob),), stype="fedquilt", data=letter.blob)
        out["packed"] = ArrayRecord({"bytes": array})
    return out


def letter(message: Message) -> Letter:
    """The letter that is the content of a message; :class:`Broken` if it is none."""
    try:
        head, packed = message.content["fedquilt"], message.content.get("packed")
        if not isinstance(head, ConfigRecord) or not isinstance(packed, ArrayRecord | None):
            raise TypeError("records of other kinds")
        protocol, facts = head["protocol"], json.loads(str(head["facts"]))
        blob = bytes(packed["bytes"].data) if packed is not None else b""
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Broken(f"the message holds no letter ({type(error).__name__}: {error})") from error
    if protocol != PROTOCOL or not isinstance(facts, dict):
        raise Broken(f"the message is of protocol {protocol!r}, and this version of the library speaks {PROTOCOL}")
    return Letter(facts, blob)
