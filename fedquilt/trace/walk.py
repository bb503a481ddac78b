"""A net's operations one by one, as ``torch.export`` writes them down, with a rule for each."""

from __future__ import annotations

import logging
import operator
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map

from ..model import tensors
from . import layers  # noqa: F401  # which knows more rules
from .classes import Where
from .rules import MOVES, RULES, move, nobody, plain, values
from .values import Trace, Value, Weight

SOURCE = re.compile(r'File "([^"]+)", line (\d+), in .*\n\s*(.*)')


class Untraceable(ValueError):
    """A net that cannot be written down as operations; the text says why."""


def exported(net: nn.Module, x: Tensor) -> Any:
    """The net as a graph of operations on a batch of two."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            return torch.export.export(net.eval(), (x,), strict=False)
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            on = f"an input of shape {tuple(x.shape[1:])} and type {str(x.dtype).removeprefix('torch.')}"
            raise Untraceable(f"{type(net).__name__} cannot be traced on {on}: {reason}") from error
        finally:
            logging.disable(before)


def walk(net: nn.Module, x: Tensor) -> Trace:
    """Follow the net's operations on a batch; what comes out is nobody's to move."""
    graph, own = exported(net, x), tensors(net)
    every = {**dict(net.named_parameters(remove_duplicate=False)), **dict(net.named_buffers(remove_duplicate=False))}
    names = {id(v): k for k, v in own.items()}
    t = Trace({k: tuple(v.shape) for k, v in own.items()})
    inputs = {spec.arg.name: spec for spec in graph.graph_signature.input_specs}
    found: dict[Any, Any] = {}
    for node in graph.graph_module.graph.nodes:
        args, more = map_arg((node.args, node.kwargs), found.__getitem__)
        if node.op == "placeholder":
            spec = inputs[node.name]
            held = every.get(spec.target) if spec.target else None
            if spec.kind == InputKind.USER_INPUT:
                found[node] = Value(x, nobody(x))
            elif held is not None and id(held) in names:
                found[node] = entered(t, names[id(held)], held.detach(), bool(node.users))
            else:
                data = graph.constants[spec.target] if held is None else held
                found[node] = Value(data, nobody(data))
        elif node.op == "call_function":
            t.where = where(net, node)
            found[node] = called(t, node.target, args, more)
        elif node.op == "output":
            t.where = Where("output", kind="the net's output")
            if len(node.args[0]) != 1:
                raise Untraceable(f"{type(net).__name__} gives {len(node.args[0])} tensors, not one of scores")
            for v in values(t, args):
                t.classes.fix(v.labels, t.why("the outputs are what they are", True))
        else:
            raise Untraceable(f"{type(net).__name__} has control flow ({node.op} {node.target}) that no rule follows")
    t.fold()
    return t


def entered(t: Trace, name: str, data: Tensor, used: bool) -> Value | Weight:
    """A tensor of the net; those of one axis have that axis's labels, if the net uses them."""
    if data.dim() > 1:
        t.base[name] = torch.arange(data.numel()).view(data.shape)
        return Weight(name, data, t.base[name])
    if data.dim() == 0 or len(data) == 1 or not data.is_floating_point():
        return Value(data, nobody(data))
    t.placed |= {(name, 0)} if used else set()
    return Value(data, t.rows[name][0])


def where(net: nn.Module, node: Any) -> Where:
    """The layer and the line of the net's own source that an operation stands in."""
    op = getattr(node.target, "_overloadpacket", node.target)
    name = getattr(op, "__name__", str(op)).rpartition(".")[2]
    stack = list(node.meta.get("nn_module_stack", {}).values())
    layer, kind = stack[-1] if stack else ("", type(net))
    kind = kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__
    for file, line, text in reversed(SOURCE.findall(node.meta.get("stack_trace") or "")):
        if not foreign(file):
            return Where(name.rstrip("_") or name, layer, kind, Path(file).name, int(line), text.strip())
    return Where(name.rstrip("_") or name, layer, kind)


def foreign(file: str) -> bool:
    """Is this a file of torch's or of ours, and not of a user's?"""
    ours = Path(__file__).parents[1]
    return Path(file).is_relative_to(Path(torch.__file__).parent) or Path(file).is_relative_to(ours)


def called(t: Trace, target: Any, args: Any, more: Any) -> Any:
    """What an operation gives: numbers, and their labels by its rule."""
    if target is operator.getitem:
        return args[0][args[1]]
    real, named = plain((args, more))
    with torch.no_grad():
        out = target(*real, **named)
    if not any(isinstance(o, Tensor) for o in tree_leaves(out)):
        return out  # an assertion, a number
    rule, labels = RULES.get(t.where.op), None
    if t.where.op in MOVES:
        labels = move(t, target, args, more)
    elif rule is not None:
        labels = rule(t, arguments(target, args, more), out)
    if labels is None:
        for v in values(t, (args, more)):
            t.classes.fix(v.labels, t.why(f"no rule says what {t.where.op} does to units"))
        labels = tree_map(nobody, out)
    return paired(t, out, labels)


def arguments(target: Any, args: Any, more: Any) -> dict[str, Any]:
    """The arguments by their names, those that were not given by their defaults."""
    schema = target._schema.arguments
    given = {a.name: a.default_value for a in schema if a.has_default_value()}
    given = {a.name: given.get(a.name) for a in schema}  # in order
    return {**given, **{a.name: v for a, v in zip(schema, args, strict=False)}, **more}


def paired(t: Trace, out: Any, labels: Any) -> Any:
    """Numbers and their labels, in the form in which an operation gave them."""
    if isinstance(labels, Weight):
        return labels
    if isinstance(out, (tuple, list)):
        return [paired(t, o, m) for o, m in zip(out, labels, strict=True)]
    if not isinstance(out, Tensor):
        return out
    labels = t.classes.of(labels).expand(out.shape)
    t.saw(labels)
    return Value(out, labels)
