"""What all parts have in common, and what they are handed: the gradient, a memory, a direction."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from aesam._core import tensors
from aesam._core.tensors import Measured, Workspace
from aesam.parts import checks

_GRAD, _LAYOUT = attrgetter("grad"), attrgetter("layout")

#: One tensor for each parameter, in the parameters' order.
Tensors = list[Tensor]

#: What a part draws random numbers from: the generator of its ``seed``, None where it has none.
Draws = torch.Generator | None


class Place(NamedTuple):
    """Where a parameter stands in the model.

    Args:
        name: its full name, as ``model.named_parameters()`` has it.
        module: the module that has it.

    >>> Place("head.bias", nn.Linear(2, 1)).module
    Linear(in_features=2, out_features=1, bias=True)
    """

    name: str
    module: nn.Module


Method = TypeVar("Method", bound=Callable[..., Any])


def on_device(method: Method) -> Method:
    """Mark a part's method that never asks for ``gradient.norm`` or another number on the host.

    It may then be called before the host knows whether the gradient is finite, which saves waiting
    for the device once more; a step whose gradient is not leaves no trace of what it did. The mark
    is the method's own: one that takes its place in a subclass needs it again.

    Args:
        method: ``direction`` of an ascent, ``observe``, ``learn`` or ``combine``.

    >>> class Still(MemoryPart):
    ...     @on_device
    ...     def observe(self, gradient, memory):
    ...         return memory
    >>> stays_on_device(Still().observe)
    True
    """
    vars(method)["stays_on_device"] = True
    return method


def stays_on_device(method: Callable[..., Any]) -> bool:
    """Whether a method has the mark of :func:`on_device`."""
    return getattr(method, "stays_on_device", False)


class _Norm:
    """A norm that is fetched from the device when it is first asked for."""

    def __get__(self, gradient: Any, kind: object = None) -> float:
        if gradient is None:
            raise AttributeError("norm")  # no default
        found = cast(float | Measured, vars(gradient)["norm"])
        return found.norm if isinstance(found, Measured) else found

    def __set__(self, gradient: Any, norm: float | Measured) -> None:
        vars(gradient)["norm"] = norm


@dataclass(frozen=True)
class Gradient:
    """The gradient ``g`` over all parameters that have one, measured once.

    Args:
        params: the parameters that have a gradient, each once.
        values: the tensors in their ``p.grad``, which carry the factor ``scale``.
        radii: ``ρ`` of each one's group, negative where the group maximises.
        norm: ``‖g‖`` of the true gradient, over all tensors, without ``scale``. Asking for it may
            wait for the device; ``length`` does not.
        scale: the factor of a loss scaler, above 0; 1 by default.
        unscaled_by: the factor that a scaler has taken from ``values`` already, and not from other
            gradients of the same backward; 1 by default.
        norms: the norm of each tensor without ``scale``, where an ascent asks for them; else empty.
        groups: the parameter group of each, with all its settings; its ``lr`` may be a tensor.
        places: where each stands in the model, where an ascent asks for it; else empty. Several of
            a parameter that is shared, none of one that the model does not have.
        workspace: lends buffers that are kept between steps.

    >>> g = Gradient([torch.zeros(2)], [torch.tensor([3.0, 4.0])], radii=[0.05], norm=5.0)
    >>> g.squared_norm
    25.0
    """

    params: Tensors
    values: Tensors
    radii: list[float]
    norm: _Norm = _Norm()  # a float for everyone
    scale: float = 1.0
    norms: Sequence[float] = ()
    groups: Sequence[Mapping[str, Any]] = ()
    places: Sequence[Sequence[Place]] = ()
    unscaled_by: float = 1.0
    workspace: Workspace = field(default_factory=Workspace, repr=False, compare=False)

    @property
    def is_late(self) -> bool:
        """Whether lengths stay on the device: the host asks after the second gradient only."""
        found = vars(self)["norm"]
        return isinstance(found, Measured) and found.is_late

    @property
    def length(self) -> float | Tensor:
        """``‖g‖ · scale``, the norm of ``values``: on the device where nobody waits for it."""
        if self.is_late:  # also where the host has it by now: the same bits either way
            return cast(Measured, vars(self)["norm"]).total
        return self.norm * self.scale

    def length_of(self, vectors: Tensors, shards_of: Tensors | None = None) -> float | Tensor:
        """The norm of other vectors together, left where :attr:`length` is.

        Args:
            vectors: tensors of any dtypes and shapes.
            shards_of: the parameters, where the vectors are buffers like this process's part of
                each; None, the default, where they are whole.

        >>> g = Gradient([torch.zeros(1)], [torch.ones(1)], radii=[0.05], norm=1.0)
        >>> g.length_of([torch.tensor([3.0, 4.0])])
        5.0
        """
        if self.is_late:
            return tensors.norm(vectors, shards_of, wide=True)
        return tensors.norm_on_host(vectors, shards_of)

    @property
    def squared_norm(self) -> float:
        """``‖g‖²``."""
        return self.norm * self.norm

    @property
    def is_finite(self) -> bool:
        """Whether no tensor has an infinity or a NaN."""
        return math.isfinite(self.squared_norm)

    def over(self, chosen: Sequence[int]) -> "Gradient":
        """The gradient over the tensors with these indices only.

        It needs ``norms``, except where lengths stay on the device: those are measured again there.
        """
        values = [self.values[i] for i in chosen]
        norms = [] if self.is_late else [self.norms[i] for i in chosen]
        norm: float | Measured = math.hypot(*norms)
        if self.is_late and values:
            norm = Measured(values, scale=self.scale, late=True)
            norm.let_go()  # they may be overwritten
        return self.changed(
            params=[self.params[i] for i in chosen],
            values=values,
            radii=[self.radii[i] for i in chosen],
            norm=norm,
            norms=norms,
            groups=[self.groups[i] for i in chosen] if self.groups else (),
            places=[self.places[i] for i in chosen] if self.places else (),
        )

    def with_values(self, values: Tensors) -> "Gradient":
        """The same measures with other tensors, copies for instance."""
        return self.changed(values=values)

    def changed(self, **others: Any) -> "Gradient":
        """The same with other fields; the norm is left where it is, on the device or here."""
        return Gradient(**{**vars(self), **others})


@dataclass(frozen=True)
class Direction:
    """A displacement of some parameters: ``ε = radius · gain · vector / length``, tensor by tensor.

    Args:
        params: the parameters to move.
        vectors: which way, a tensor for each of them.
        radii: how far, ``ρ`` of each one's group, or what an ascent makes of it; numbers, or
            tensors without a dimension where ``length`` is one.
        length: what normalising divides by, measured like ``vectors``, loss scale included. If
            it is infinite or NaN, the weights go nowhere and the update is skipped. A tensor
            without a dimension is left on its device.
        scale: what stands in its place without normalising, above 0; 1 by default.
        gain: a factor on all of it; 1 by default.
        fill: writes the vectors into buffers that it is lent, shaped like what this process holds
            of each parameter, where they are made for this move only and ``vectors`` are none.

    >>> Direction([torch.zeros(1)], [torch.ones(1)], [0.05], length=2.0).factors(normalize=True)
    [0.025]
    """

    params: Tensors
    vectors: Tensors
    radii: Sequence[float | Tensor]
    length: float | Tensor
    scale: float = 1.0
    gain: float = 1.0
    fill: Callable[[Tensors], None] | None = None

    def factors(self, normalize: bool) -> list[float]:
        """What each vector is multiplied by; zeros where there is no direction."""
        length = tensors.as_number(self.length)
        divisor = length if normalize else self.scale
        if divisor == 0.0:
            return [0.0] * len(self.radii)
        if not math.isfinite(divisor):
            return [math.nan] * len(self.radii)
        return [tensors.as_number(radius) * self.gain / divisor for radius in self.radii]

    def move(self, normalize: bool, overwrite: bool = False) -> bool:
        """Bring the parameters to where it goes; whether that may be elsewhere.

        With a length on the device, nothing waits for it: where it is not finite they stay. That
        takes memory for the largest vector, unless it may ``overwrite`` them.
        """
        if not isinstance(self.length, Tensor):
            factors = self.factors(normalize)
            if any(factors):
                tensors.add_each(self.params, self.vectors, factors)
            return any(factors)
        length = tensors.widened(self.length)
        moves = length.isfinite() & (length > 0.0) if normalize else length.isfinite()
        divisor = torch.where(moves, length, 1.0) if normalize else self.scale
        factor = self.gain / divisor * torch.ones_like(length)
        tensors.add_on_device(self.params, self.vectors, self.radii, factor, moves, overwrite)
        return True


class Excursion:
    """A first pass at other weights than ``w`` that no :class:`Direction` can name.

    >>> class Nowhere(Excursion):
    ...     def move(self): ...
    ...     def restore(self): ...
    >>> Nowhere().move()
    """

    #: Whether the weights themselves are elsewhere until :meth:`restore`. Where not, a forward at
    #: ``w`` between a training forward and its backward leaves the excursion, and it goes on after.
    is_in_weights = True

    def move(self) -> None:
        """Go there."""
        raise TypeError(f"{type(self).__name__} must define move()")

    def restore(self) -> None:
        """Come back, to the bit; harmless if that was done already, or cut short."""
        raise TypeError(f"{type(self).__name__} must define restore()")


@dataclass(frozen=True)
class Memory:
    """What a part keeps from step to step: numbers, and at most one tensor per parameter.

    Args:
        values: the numbers by name, those of :attr:`MemoryPart.remembers`; none by default.
            :meth:`MemoryPart.learn` may leave them on the device, as tensors without a dimension:
            they are fetched together with everything else that the host waits for.
        tensors: a tensor by its parameter; none by default.

    >>> Memory({"norm": 2.0}).tensors
    {}
    """

    values: Mapping[str, float | Tensor] = field(default_factory=dict[str, float | Tensor])
    tensors: Mapping[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])

    def number(self, name: str) -> float:
        """The number of this name, 0 where nothing is remembered yet."""
        return float(self.values.get(name, 0.0))

    def of(self, params: Tensors) -> list[Tensor | None]:
        """The tensor of each parameter, None where there is none.

        Args:
            params: parameters, usually those that have a gradient.

        >>> w = torch.zeros(1)
        >>> Memory({}, {w: torch.ones(1)}).of([w, torch.zeros(1)])
        [tensor([1.]), None]
        """
        if list(map(id, self.tensors)) == list(map(id, params)):
            return list(self.tensors.values())  # tensors are slow to look up
        return [self.tensors.get(p) for p in params]


class Part:
    """Base of all parts. A part is immutable: what changes in training is handed in and out.

    A part with an attribute ``seed`` is given a random generator of its own, which is saved with
    the optimizer and never touches the model's random stream.
    """

    @property
    def class_name(self) -> str:
        """What it is called in checkpoints, which are of this combination of classes only."""
        return type(self).__name__

    def seeds(self) -> dict[str, int]:
        """The seeds of its random generators, by path: its own under ``""``, members' by theirs."""
        seed = getattr(self, "seed", None)
        return {} if seed is None else {"": seed}

    def check_model(self, model: nn.Module | None, base: torch.optim.Optimizer) -> None:
        """Refuse, where the optimizer is made, a model that this part could not work with."""

    @property
    def needs_total_steps(self) -> bool:
        """Whether it has a setting ``total_steps`` that was left out."""
        return getattr(self, "total_steps", 0) is None

    def with_total_steps(self, total_steps: int | None) -> Any:
        """The same part for a training of this many steps; itself where it does not ask."""
        if not hasattr(self, "total_steps"):
            return self
        if not is_dataclass(self):
            raise TypeError(f"{type(self).__name__} must define with_total_steps(total_steps)")
        return replace(self, total_steps=total_steps)

    def _known_total_steps(self) -> int:
        """``total_steps`` at a decision, which cannot be made without."""
        if self.needs_total_steps:
            raise RuntimeError(
                "total_steps must be given before the first decision: the number of optimizer "
                "steps of the whole training, for example total_steps=epochs * len(loader) when "
                "the optimizer is made, or opt.set_total_steps(...) later. Lightning's automatic "
                "optimization fills it in with SharpnessAwareCallback, Transformers' Trainer with "
                "SharpnessAwareMixin (aesam.integrations). Nothing was decided."
            )
        return vars(self)["total_steps"]

    def before_pass(
        self, base: torch.optim.Optimizer, memory: "Memory", generator: Draws
    ) -> "Direction | Gradient | Excursion | None":
        """Where to take the first gradient instead of at ``w``; the weights return after it.

        Called for every forward and backward of a step; with a policy that never fires, a bare
        ``step()`` works: the model's own forward moves the weights. An ascent may name what stands
        in the gradient's place instead, and its ``direction`` says where that leads to. What its
        memory keeps may take part in the forward; ``observe`` finds the gradients that it has then.
        """
        return None

    def other_weights(self, base: torch.optim.Optimizer, memory: "Memory") -> Direction | None:
        """From ``w`` to weights that run on the inputs of a training forward too, without gradient.

        :meth:`difference` of both outputs is added to the loss, while :meth:`compares_now`.
        """
        return None

    def compares_now(self, memory: "Memory") -> bool:
        """Whether this step's outputs are compared with those of :meth:`other_weights`."""
        return True

    def difference(self, now: Tensor, other: Tensor) -> Tensor:
        """What is added to the loss, one number.

        Args:
            now: the logits of a training forward, a row for each sample.
            other: those of the other weights, which have no gradient.
        """
        raise TypeError(f"{type(self).__name__} must define difference(now, other)")

    def after_base_step(self, base: torch.optim.Optimizer, carried: Any) -> None:
        """Change the weights after the base optimizer did; not on a step that is skipped.

        The step counts by then. So where an interrupt cuts this short, it is called again with the
        same ``carried``: what changes weights in several strokes notes there which are done.

        Args:
            base: the optimizer that has just made its update.
            carried: what ``before_base_step`` of this part returned, or a combination's
                ``combine``; None for other parts.
        """

    def _keep(self, **checked: bool | int | float | str | None) -> None:
        """Put checked settings in place of the given ones: plain numbers that any file can hold."""
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def settings(self) -> dict[str, bool | int | float | str | None]:
        """The constructor's plain values, kept in checkpoints to notice a changed setting."""
        kept = bool | int | float | str | None
        return {k: v for k, v in vars(self).items() if isinstance(v, kept)}


class MemoryPart(Part):
    """Base of ascents, samples, between and combine: parts that may remember tensors.

    Memory is handed to every method that acts, and changed in three places: by :meth:`observe` on
    every step, by :meth:`learn` on a step with a second gradient, and by :meth:`before_base_step`
    on every step that is taken.
    """

    #: Names of the numbers in this part's :class:`Memory`, for checking a checkpoint.
    remembers: tuple[str, ...] = ()

    #: Whether the memory of a part that observes or learns may have tensors: they have a place in
    #: every checkpoint, formed or not. False saves that place.
    keeps_tensors = True

    #: Whether a copy of the first gradient must be kept through the second pass.
    needs_first_gradient = False

    def start(self) -> Memory:
        """What is remembered before the first step; nothing by default."""
        return Memory()

    def observe(self, gradient: Gradient, memory: Memory) -> Memory:
        """Called on every step, fired or not: the memory after this gradient."""
        return memory

    def learn(
        self,
        first: Gradient,
        params: Tensors,
        second: Tensors,
        memory: Memory,
        workspace: Workspace,
    ) -> Memory:
        """Called when both gradients are there, before they are combined: the memory after them.

        New tensors are taken from ``workspace`` and go back to it when they are replaced.
        """
        return memory

    def before_base_step(
        self,
        base: torch.optim.Optimizer,
        memory: Memory,
        generator: Draws,
        workspace: Workspace,
    ) -> tuple[Any, Memory]:
        """Called right before the base's update: what is carried past it, and the memory after it.

        The weights are at ``w`` and ``d`` is in ``p.grad``. What is carried reaches
        ``after_base_step``; the memory is kept if the base's update returns. New tensors are taken
        from ``workspace`` and go back to it when they are replaced.
        """
        return None, memory

    def check_memory(self, memory: Memory) -> None:
        """Raise a ValueError for a memory, read from a checkpoint, that no step leaves."""

    def settle(self, memory: Memory, first: Gradient, before: Memory) -> Memory:
        """Say what is kept, when the host has all numbers: those of ``first``, too.

        Args:
            memory: what :meth:`learn` returned, its numbers fetched.
            first: the first gradient.
            before: the memory that :meth:`learn` was handed.
        """
        return memory


class Present(NamedTuple):
    """The parameters that have a gradient, each once; the gradient, radius and group of each."""

    params: Tensors
    values: Tensors
    radii: list[float]
    groups: list[dict[str, Any]]


def with_gradient(groups: Iterable[dict[str, Any]], rho: float) -> Present:
    """What has a gradient now, in the groups' order."""
    params: Tensors = []
    values: Tensors = []
    radii: list[float] = []
    owners: list[dict[str, Any]] = []
    for group in groups:
        present, found = group["params"], list(map(_GRAD, group["params"]))
        if type(None) in set(map(type, found)):
            present = [p for p, g in zip(present, found, strict=True) if g is not None]
            found = [g for g in found if g is not None]
        params += present
        values += found
        radii += [radius(group, rho)] * len(present)
        owners += [group] * len(present)
    if len(set(map(id, params))) < len(params):
        once = {id(p): i for i, p in reversed(list(enumerate(params)))}
        kept = sorted(once.values())
        params, values = [params[i] for i in kept], [values[i] for i in kept]
        radii, owners = [radii[i] for i in kept], [owners[i] for i in kept]
    return Present(params, values, radii, owners)


def trained(groups: Iterable[dict[str, Any]]) -> dict[Tensor, dict[str, Any]]:
    """The parameters that are trained, each once and in the groups' order, with its group."""
    found: dict[Tensor, dict[str, Any]] = {}
    for group in groups:
        for p in group["params"]:
            if p.requires_grad:
                found.setdefault(p, group)
    return found


def dense(part: Part, values: Tensors) -> Tensors:
    """The tensors, if none of them is sparse; else an error that says what to do."""
    if not {torch.strided}.issuperset(map(_LAYOUT, values)):
        raise TypeError(
            f"{type(part).__name__} needs dense gradients and found a sparse one: make the "
            "embedding with sparse=False, or use SAM, which takes both"
        )
    return values


def places_of(params: Tensors, model: nn.Module) -> list[list[Place]]:
    """Where each parameter stands in the model now, by the names that wrappers do not change."""
    found: dict[int, list[Place]] = {id(p): [] for p in params}
    modules = cast(Iterable[tuple[str, nn.Module]], model.named_modules(remove_duplicate=False))
    for path, module in modules:
        for name, p in module.named_parameters(path, recurse=False, remove_duplicate=False):
            if id(p) in found:
                found[id(p)].append(Place(_unwrapped(name, model), module))
    return [found[id(p)] for p in params]


def _unwrapped(name: str, model: nn.Module) -> str:
    """The name without what DDP and ``torch.compile`` put before and into it."""
    name = name.replace("_orig_mod.", "")
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel)
    return name.removeprefix("module.") if wrapped else name


def radius(group: dict[str, Any], rho: float) -> float:
    """The group's ``ρ``: its own if it has one, signed so that it always makes the loss worse.

    Args:
        group: a parameter group; with ``maximize`` the radius is negative.
        rho: the radius of groups without one, 0 or more.

    >>> radius({"maximize": True}, rho=0.05)
    -0.05
    """
    own = checks.at_least_zero("rho of a parameter group", group.get("rho", rho))
    return -own if group.get("maximize", False) else own


def to_unit_length(length: float | Tensor) -> float | Tensor:
    """What makes a vector of this length one of length 1: no square leaves the dtype's range.

    0 where there is no direction; a length on the device is left there.
    """
    if not isinstance(length, Tensor):
        return min(1.0 / length, 1e38) if length > 0.0 else 0.0
    return torch.where(length > 0.0, 1.0 / length, 0.0).clamp(max=1e38)


def rate(group: Mapping[str, Any]) -> float:
    """The group's learning rate as a number; one on a device is fetched from it.

    Args:
        group: a parameter group that has an ``lr``.

    >>> rate({"lr": torch.tensor(0.5)})
    0.5
    """
    if "lr" not in group:
        raise ValueError(
            "the method needs the learning rate of each parameter group, and one has no lr: use "
            "another base optimizer, or set group['lr']"
        )
    return float(group["lr"])


def global_norm(vectors: Sequence[Tensor]) -> float:
    """The Euclidean norm of all tensors together, over all shards and processes of FSDP2.

    Args:
        vectors: tensors of any dtypes, devices and shapes; sparse ones and DTensors are welcome.

    >>> global_norm([torch.tensor([3.0]), torch.tensor([4.0])])
    5.0
    """
    return tensors.norm_on_host(vectors)
