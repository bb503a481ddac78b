"""A study as a value: methods × data × partitions × seeds, from flags, a TOML file or Python; one schema for all.

    seeds = 3
    data = ["digits"]
    lr = 0.05                  # a setting of a method stands for all that have it
    methods = ["fedspu", {name = "fedavg", finetune = 1}]

Or, with a name of one's own for each: ``[methods.wide]``, then ``name = "fedspu"``.  What cannot be
is refused before any work, with its place in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from itertools import product
from typing import Any

from .run import Run
from .schema import BadSetting, coerce, nearest, settings, unknown

OWN = ("methods", "seeds", "baselines", "data", "partition", "method", "seed")
RUN = tuple(f.name for f in fields(Run))
MOST_RUNS = 10_000
BUDGET = ("fraction", "epochs", "batch")  # where methods differ in these, they have not the same budget


@dataclass(frozen=True)
class Entry:
    """One run of a study, and where it stands in the tables."""

    label: str
    data: str
    partition: str
    seed: int
    run: Run


@dataclass(frozen=True)
class Study:
    """``methods`` by label, as a name with all settings; ``run`` are the settings that all runs share."""

    methods: Mapping[str, Mapping[str, Any]]
    data: tuple[str, ...] = ("digits",)
    partitions: tuple[str, ...] = (Run.partition,)
    seeds: tuple[int, ...] = (0,)
    run: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(given: Mapping[str, Any], baselines: bool = False) -> Study:
        """The study that these settings say, checked; with ``baselines`` local and fine-tuned fedavg stand beside."""
        asked = dict(_asked(given))
        if not asked:
            raise BadSetting("a study names a method, such as method = 'fedspu'", "methods")
        beside = coerce(given.get("baselines", baselines), bool, "baselines", "baselines")
        shared = {k: v for k, v in given.items() if k not in (*OWN, *RUN)}
        methods: dict[str, Mapping[str, Any]] = {
            label: _method(spec, shared, path) for label, (spec, path) in asked.items()
        }
        if beside:
            methods = _beside(methods, shared)
        _refuse_unknown(shared, methods)
        return Study(
            methods,
            _texts(given, "data", Run.data),  # type: ignore[arg-type]
            _texts(given, "partition", Run.partition),
            _seeds(given),
            {k: v for k, v in given.items() if k in RUN and k not in OWN},
        )._checked()

    def _checked(self) -> Study:
        n = len(self.methods) * len(self.data) * len(self.partitions) * len(self.seeds)
        if n > MOST_RUNS:
            raise BadSetting(f"this study is {n:,} runs, more than the {MOST_RUNS:,} that one may have", "seeds")
        return replace(self, run={k: v for k, v in self.entries()[0].run.plain().items() if k in self.run})

    def entries(self) -> list[Entry]:
        """Its runs, seed by seed, so that all methods of a seed come before any of the next."""
        base = Run.of(self.run)
        cells = product(self.seeds, self.data, self.partitions)
        return [
            Entry(label, data, partition, seed, replace(base, method=spec, data=data, partition=partition, seed=seed))
            for seed, data, partition in cells
            for label, spec in self.methods.items()
        ]

    def plain(self) -> dict[str, Any]:
        """The settings that say this study again: ``Study.of(study.plain()) == study``."""
        return {
            "methods": {label: dict(spec) for label, spec in self.methods.items()},
            "data": list(self.data),
            "partition": list(self.partitions),
            "seeds": list(self.seeds),
            **self.run,
        }

    @property
    def digest(self) -> str:
        """A short name: equal studies have equal ones."""
        return blake2b(json.dumps(self.plain(), sort_keys=True).encode(), digest_size=4).hexdigest()

    @property
    def notices(self) -> list[str]:
        """Where the methods differ in what should be equal in a comparison."""
        said = []
        for name in BUDGET:
            values = {label: spec[name] for label, spec in self.methods.items() if name in spec}
            if len(set(map(str, values.values()))) > 1:
                each = ", ".join(f"{label} {v}" for label, v in values.items())
                said.append(f"the methods differ in {name} ({each}): their budgets are not the same")
        return said


# ---- methods
Asked = tuple[str, tuple[dict[str, Any], str]]  # a label, what is asked for, and its place


def _asked(given: Mapping[str, Any]) -> Iterator[Asked]:
    """The methods that the settings name, with the key that each stands under."""
    if "method" in given and "methods" in given:
        raise BadSetting("a study has method or methods, not both", "method")
    if "methods" not in given:
        spec = _spec(given.get("method", "fedavg"), "method")
        yield spec["name"], (spec, "method")
        return
    many = given["methods"]
    if isinstance(many, Mapping):
        for label, spec in many.items():
            if not isinstance(spec, Mapping):
                raise BadSetting(f"methods.{label} is a table of settings, not {spec!r}", f"methods.{label}")
            yield label, ({"name": label, **spec}, f"methods.{label}")
        return
    if isinstance(many, str) or not isinstance(many, Sequence):
        raise BadSetting(f"methods is a list of names, or a table with one table a method, not {many!r}", "methods")
    seen = set()
    for one in many:
        spec = _spec(one, "methods")
        label = " ".join([str(spec["name"]), *(f"{k}={_shown(v)}" for k, v in spec.items() if k != "name")])
        if label in seen:
            raise BadSetting(f"the study names {label} twice", "methods")
        seen.add(label)
        yield label, (spec, "methods")


def _spec(one: object, key: str) -> dict[str, Any]:
    """A method's name, or a table of its name and settings, as the latter."""
    if isinstance(one, str):
        return {"name": one}
    if isinstance(one, Mapping) and isinstance(one.get("name"), str):
        return dict(one)
    raise BadSetting(f"a method is a name, or a table with a name and settings, not {one!r}", key)


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _method(spec: Mapping[str, Any], shared: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The method's name with all its settings: its own before the shared before the defaults."""
    from .methods import METHODS, build

    name = spec["name"]
    if not isinstance(name, str):
        raise BadSetting(f"the name of a method is a text, not {name!r}", f"{path}.name")
    if name not in METHODS:
        raise _at(unknown("method", name, METHODS), path, "name")
    known = settings(METHODS[name])
    own = {k: v for k, v in spec.items() if k != "name"}
    try:
        return dict(build({"name": name, **{k: v for k, v in shared.items() if k in known}, **own}, RUN).spec)
    except BadSetting as error:
        raise _at(error, path if error.key in own else "", error.key) from error


def _at(error: BadSetting, path: str, key: str) -> BadSetting:
    return BadSetting(str(error), ".".join(p for p in (path, key) if p))


def _beside(methods: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The methods with local and fine-tuned fedavg before them, where they are not there already."""
    out: dict[str, Mapping[str, Any]] = {}
    if not any(spec["name"] == "local" for spec in methods.values()):
        out["local"] = _method({"name": "local"}, shared, "methods")
    if not any(is_finetuned(spec) for spec in methods.values()):
        epochs = _method({"name": "fedavg"}, shared, "methods")["epochs"]
        tuned = _method({"name": "fedavg", "finetune": epochs}, shared, "methods")
        out[f"fedavg finetune={epochs}"] = tuned
    twice = out.keys() & methods.keys()
    if twice:
        raise BadSetting(f"the name {min(twice)} is that of a method that stands beside every comparison", "methods")
    return out | dict(methods)


def is_finetuned(spec: Mapping[str, Any]) -> bool:
    """Is this fine-tuned fedavg?"""
    return bool(spec["name"] == "fedavg" and spec.get("finetune"))


def _refuse_unknown(shared: Mapping[str, Any], methods: Mapping[str, Mapping[str, Any]]) -> None:
    from .methods import METHODS

    have = {k for spec in methods.values() for k in spec if k != "name"}
    all_there_are = {k for builder in METHODS.values() for k in settings(builder)}
    for key in shared:
        if key not in have:
            which = ", ".join(sorted({str(spec["name"]) for spec in methods.values()}))
            raise BadSetting(
                f"neither a run nor a method here ({which}) has a setting {key!r}; "
                f"{nearest(key, sorted({*RUN, *OWN, *all_there_are}))}`fedquilt run METHOD --help` lists them",
                key,
            )


# ---- data, partitions, seeds
def _texts(given: Mapping[str, Any], key: str, default: str) -> tuple[str, ...]:
    """One text or a list of them."""
    value = given.get(key, default)
    many = [value] if isinstance(value, str) else value
    if not isinstance(many, (list, tuple)) or not many or not all(isinstance(v, str) for v in many):
        raise BadSetting(f"{key} is a text such as {default!r}, or a list of such texts, not {value!r}", key)
    if len(set(many)) < len(many):
        raise BadSetting(f"{key} says the same twice: {', '.join(many)}", key)
    return tuple(many)


def _seeds(given: Mapping[str, Any]) -> tuple[int, ...]:
    """``seeds = 3`` is 0, 1, 2; ``seeds = [4, 5]`` and ``seed = 4`` are those."""
    if "seeds" not in given:
        return (coerce(given.get("seed", 0), int, "seed", "seed"),)
    if "seed" in given:
        raise BadSetting("a study has seed or seeds, not both", "seed")
    value = given["seeds"]
    if isinstance(value, str) and re.fullmatch(r"\s*\d+\s*", value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 < value <= MOST_RUNS:
            raise BadSetting(f"seeds is how many, from 1 to {MOST_RUNS:,}, or a list of them, not {value}", "seeds")
        return tuple(range(value))
    many: tuple[int, ...] = coerce(value, tuple[int, ...], "seeds", "seeds")
    if not many or len(set(many)) < len(many):
        raise BadSetting("seeds is how many there are, or a list of different whole numbers", "seeds")
    return many
