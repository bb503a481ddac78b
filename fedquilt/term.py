"""What a training step sees of a batch, and what may look at it: terms, views and watches.

Inside a step there are only tensors: nothing here may look at a value (``.item()``, ``if tensor``),
make randomness, or average over samples by itself (use ``step.mean``).  ``tests/laws/test_vmap.py``
runs each of them under ``torch.func.vmap`` with its fallback switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.func import functional_call

from .cover import Params
from .task import Task

if TYPE_CHECKING:
    from .fit import Fit

Given = dict[str, Tensor]


# ---- what there is to see
@dataclass(frozen=True, eq=False)
class Output:
    """What a net says about a batch: its output, and the outputs of its stages if a term asked."""

    logits: Tensor
    features: Mapping[str, Tensor] = field(default_factory=dict)


def call(net: nn.Module, tensors: Params, x: Tensor, stages: Sequence[str] = ()) -> Output:
    """The net on these tensors (its buffers are written in place), with the outputs of ``stages``."""
    if not stages:
        return Output(_on(net, tensors, x))
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda module, args, out: seen.__setitem__(name, out)

    hooks = [net.get_submodule(s).register_forward_hook(keep(s)) for s in stages]
    try:
        logits = _on(net, tensors, x)
    finally:
        for h in hooks:
            h.remove()
    return Output(logits, {s: seen[s] for s in stages})


Places = dict[str, tuple[dict[str, Any], str]]  # of each tensor, the layer's table and its name there
_PLACES: WeakKeyDictionary[nn.Module, Places] = WeakKeyDictionary()


def _on(net: nn.Module, tensors: Params, x: Tensor) -> Tensor:
    """What torch's ``functional_call`` gives, which looks through the whole net anew each time: a tenth of a step."""
    places = _PLACES.get(net)
    if places is None:
        places = _PLACES[net] = _places(net)
    if not tensors.keys() <= places.keys():
        out: Tensor = functional_call(net, tensors, (x,))
        return out
    used = [(*places[k], t) for k, t in tensors.items()]
    before = [layer[leaf] for layer, leaf, _ in used]
    try:
        for layer, leaf, t in used:
            layer[leaf] = t
        made: Tensor = net(x)
    finally:
        for (layer, leaf, _), t in zip(used, before, strict=True):
            layer[leaf] = t
    return made


def _places(net: nn.Module) -> Places:
    """Where each tensor of the net is; nowhere, if layers share some: to know which is torch's business."""
    out: Places = {}
    seen: set[int] = set()
    for prefix, layer in net.named_modules(remove_duplicate=False):
        for table in (layer._parameters, layer._buffers):
            for leaf, t in table.items():
                if t is not None and id(t) in seen:
                    return {}
                seen.add(id(t))
                out[f"{prefix}.{leaf}" if prefix else leaf] = table, leaf
    return out


@dataclass(frozen=True, eq=False)
class Step:
    """One client, one mini-batch."""

    task: Task
    params: Params  # what is trained, by the net's own names
    extra: Params  # what is trained besides: scores, mixing weights
    used: Params  # what the net ran on: params, or what a view or a slice made of them
    anchor: Params
    given: Given  # this client's constants, from the given of the term that looks
    x: Tensor
    y: Tensor
    out: Output
    run: Callable[[Params], Output]  # the net on other parameters, no statistics moved
    peer: Callable[[str], Output]  # another net of the request, on this batch; it runs once a step
    beside: Output | None = None  # the net at the slice that runs beside the drawn one
    weights: Tensor | None = None  # 0 for samples that only pad the batch

    def mean(self, each: Tensor, weight: Tensor | None = None) -> Tensor:
        """The average over the samples that exist."""
        if weight is not None and self.weights is not None:
            weight = weight * self.weights
        elif weight is None:
            weight = self.weights
        if weight is None:
            return each.mean()
        return (each * weight).sum() / weight.sum().clamp(min=1e-12)


# ---- what may look at it
class Term:
    """A summand of the objective: a frozen dataclass of plain settings, so that equal terms share a batch."""

    features: ClassVar[bool] = False  # does it look at the outputs of stages?

    def given(self, fit: Fit, labels: Tensor) -> Given:
        """This client's constants; once a request, any Python is allowed here."""
        return {}

    def __call__(self, s: Step) -> Tensor:
        """The term's value on a batch."""
        raise TypeError(f"{type(self).__name__} does not say what it adds")


@dataclass(frozen=True)
class TaskLoss(Term):
    """The loss of the task, on what the net says."""

    def __call__(self, s: Step) -> Tensor:
        """The mean over the batch."""
        return s.mean(*s.task.loss(s.out.logits, s.y))


class View:
    """What the net runs on instead of the plain parameters, and what of them may move in this step.

    A frozen dataclass; a differentiable function of parameters and extras: scaled weights, weights
    under a trained mask.  The second value is a boolean tensor for each tensor that may not move
    everywhere.
    """

    def given(self, fit: Fit, labels: Tensor) -> Given:
        """This client's constants; once a request, any Python is allowed here."""
        return {}

    def __call__(self, params: Params, extra: Params, given: Given) -> tuple[Params, Params]:
        """The parameters to run on, and where they may move."""
        raise TypeError(f"{type(self).__name__} does not say what the net runs on")


class Watch:
    """Something added up over the steps (squared gradients, squared losses), by name of the result.

    A frozen dataclass.  ``see`` looks at a step, before there is a gradient; ``add`` looks at what
    was seen and at the gradient of the whole objective, dense: that of frozen coordinates too.
    """

    def start(self, fit: Fit) -> Params:
        """The sums before the first step."""
        return {}

    def see(self, s: Step) -> Params:
        """What is needed of the step."""
        return {}

    def add(self, so_far: Params, seen: Params, grads: Params) -> Params:
        """The sums after one more step."""
        raise TypeError(f"{type(self).__name__} does not say what it adds up")
