"""A builder's signature is the schema of its settings: checked before any work, with the nearest right name.

Nothing here imports torch.  pydantic turns text into the annotated types; its errors become one
sentence each.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, wraps
from typing import Any, Literal, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class BadSetting(ValueError):
    """What a person asked for cannot be; the text says what, where, and what to do.

    ``key`` is the setting that it is about, where it is about one: whoever read it from a file can say the line.
    """

    def __init__(self, text: str, key: str = "") -> None:
        super().__init__(text)
        self.key = key


def recorded(builder: Callable[P, T]) -> Callable[P, T]:
    """The builder, whose makes know what builds them again: ``spec``, fit for JSON, is its name and all settings."""

    @wraps(builder)
    def make(*args: P.args, **given: P.kwargs) -> T:
        said = inspect.signature(builder).bind(*args, **given)
        said.apply_defaults()
        for name, value in said.arguments.items():
            _sane(name, value)
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in said.arguments.items()}
        return replace(builder(*args, **given), spec={"name": builder.__name__, **plain})  # type: ignore[type-var]

    return make


def _sane(name: str, value: object) -> None:
    """Refuse numbers that no method or net has a use for; what more a setting asks, its part says."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (int, float)) and number < 0:
            raise BadSetting(f"{name} is at least 0, not {number}", name)
    if name == "batch" and value == 0:
        raise BadSetting("batch is at least 1, not 0", name)


def nearest(word: str, known: Iterable[str]) -> str:
    """``did you mean 'x'? `` if some known word is near, else nothing."""
    near = get_close_matches(word, list(known), 1, 0.6)
    return f"did you mean {near[0]!r}? " if near else ""


def unknown(kind: str, word: str, known: Iterable[str]) -> BadSetting:
    """The error of a name that is not in a table."""
    names = list(known)
    return BadSetting(f"no {kind} is called {word!r}; {nearest(word, names)}There are: {', '.join(names)}")


def settings(builder: Callable[..., object], skip: int = 0) -> dict[str, inspect.Parameter]:
    """The settings of a builder: the parameters of its signature after the first ``skip``."""
    return dict(list(inspect.signature(builder).parameters.items())[skip:])


def hint(builder: Callable[..., object], name: str) -> Any:
    """The type of one setting (the others may have types that are not loaded)."""
    plain = inspect.unwrap(builder)
    setting = inspect.signature(plain).parameters[name]
    if setting.annotation is setting.empty:  # somebody's own
        return Any if setting.default in (setting.empty, None) else type(setting.default)
    said = types.SimpleNamespace(__annotations__={name: setting.annotation})
    return typing.get_type_hints(said, vars(sys.modules[plain.__module__]))[name]


def check(
    builder: Callable[..., object], given: Mapping[str, object], what: str, also: Iterable[str] = (), skip: int = 0
) -> dict[str, Any]:
    """These settings in the types that the builder's signature says; :class:`BadSetting` where that cannot be."""
    known = settings(builder, skip)
    out = {}
    for name, value in given.items():
        if name not in known:
            some = ", ".join(known) or "none"
            raise BadSetting(
                f"{what} has no setting {name!r}; {nearest(name, [*known, *also])}Its settings are: {some}", name
            )
        out[name] = value = coerce(value, hint(builder, name), f"{what}: {name}", name)
        if isinstance(value, float) and math.isinf(value) and known[name].default != math.inf:
            raise BadSetting(f"{what}: {name} is a finite number, not {value}", name)
    missing = [n for n, p in known.items() if p.default is p.empty and n not in out and p.kind is not p.VAR_KEYWORD]
    if missing:
        raise BadSetting(f"{what} needs a value for {', '.join(missing)}")
    return out


def build(builder: Callable[..., T], given: Mapping[str, object], what: str, also: Iterable[str] = ()) -> T:
    """What the builder makes of these settings; its own objections come as :class:`BadSetting`."""
    ready = check(builder, given, what, also)
    try:
        return builder(**ready)
    except ValueError as error:
        first = str(error).split(maxsplit=1)[0] if str(error) else ""  # objections begin with what they are about
        key = error.key if isinstance(error, BadSetting) else first if first in ready else ""
        raise BadSetting(f"{what}: {error}", key) from error


def coerce(value: object, kind: Any, where: str, key: str = "") -> Any:
    """The value in a type: text becomes numbers, truth values and lists of them, ``none`` becomes None."""
    from pydantic import ValidationError

    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    if isinstance(value, str):
        if type(None) in options and value.lower() == "none":
            return None
        if any(typing.get_origin(o) is tuple for o in options):
            value = [part.strip() for part in value.replace("x", ",").split(",") if part.strip()]
    if isinstance(value, bool) and bool not in options:
        raise BadSetting(f"{where} is {spoken(kind)}, not {str(value).lower()}", key)
    try:
        out = _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise BadSetting(f"{where} is {spoken(kind)}, not {value!r}", key) from error
    if isinstance(out, float) and math.isnan(out):
        raise BadSetting(f"{where} is a number, not nan", key)
    return out


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # here, because `list` needs none

    return TypeAdapter(kind)


def spoken(kind: Any) -> str:
    """A type in words."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}
    if kind in words:
        return words[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(spoken, inner))
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin is tuple:
        return "a list such as 1,2 of which each is " + spoken(inner[0])
    return getattr(kind, "__name__", str(kind))


def named(text: str, table: Mapping[str, Callable[..., T]], kind: str, skip: int = 0) -> tuple[str, dict[str, Any]]:
    """The name and the settings that a text says: ``plateau``, ``dirichlet:0.1``, ``buffered:busy=10:k=3``.

    Values without a name come first and are those of the settings in order.
    """
    name, *words = text.split(":")
    if name not in table:
        raise unknown(kind, name, table)
    return name, worded(words, table[name], name, f"{kind} {text!r}", skip)


def worded(words: Sequence[str], builder: Callable[..., object], name: str, what: str, skip: int = 0) -> dict[str, Any]:
    """The settings that words say, such as ``10``, ``k=3``."""
    order = list(settings(builder, skip))
    usage = f"it is {':'.join([name, *(s.upper() for s in order)])}" if order else f"{name} has none"
    given: dict[str, object] = {}
    for place, word in enumerate(words):
        key, equals, value = word.partition("=")
        if not equals:
            if place >= len(order):
                raise BadSetting(f"{what} has too many settings; {usage}")
            key, value = order[place], word
        if key in given:
            raise BadSetting(f"{what} says {key} twice")
        given[key] = value
    return check(builder, given, what, skip=skip)


def chosen(text: str, table: Mapping[str, Callable[..., T]], kind: str) -> T:
    """What a text of the form of :func:`named` builds."""
    name, given = named(text, table, kind)
    return build(table[name], given, f"{kind} {text!r}")
