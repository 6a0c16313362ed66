"""What a constructor is given, checked and made ready: the base optimizer, model and parts."""

import inspect
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from aesam._core import bases, layout, messages, tensors
from aesam._core.messages import frames_to_user
from aesam.parts import checks
from aesam.parts.ascents import Ascent
from aesam.parts.between import Between, Plain
from aesam.parts.combine import Combine
from aesam.parts.part import MemoryPart, Part, stays_on_device
from aesam.parts.policies import Policy
from aesam.parts.samples import Samples
from aesam.together import needs_closure

Kind = TypeVar("Kind", bound=Part)


@dataclass(frozen=True)
class Parts:
    """One answer to each question of a step; none of them knows of the others."""

    policy: Policy
    ascent: Ascent
    samples: Samples
    between: Between
    combine: Combine

    @cached_property
    def by_name(self) -> dict[str, Part]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def with_memory(self) -> dict[str, MemoryPart]:
        return {n: part for n, part in self.by_name.items() if isinstance(part, MemoryPart)}

    @property
    def method(self) -> str:
        """The method's name in checkpoints: the classes of its parts."""
        return "/".join(part.class_name for part in self.by_name.values())

    def with_total_steps(self, total_steps: int | None) -> "Parts":
        """The same parts, told how long the training is."""
        told = {n: part.with_total_steps(total_steps) for n, part in self.by_name.items()}
        return replace(self, **told)

    @property
    def needs_total_steps(self) -> bool:
        """Whether one of them must know how long the training is, and was not told."""
        return any(part.needs_total_steps for part in self.by_name.values())

    @property
    def total_steps(self) -> int | None:
        """The length of the training that they were told, None where none of them was."""
        told = [getattr(part, "total_steps", None) for part in self.by_name.values()]
        return next((steps for steps in told if steps is not None), None)

    @cached_property
    def selects_rows(self) -> bool:
        return self.samples.selects_rows

    @cached_property
    def needs_losses(self) -> bool:
        return self.samples.needs_losses

    @cached_property
    def always_pass_twice(self) -> bool:
        """Whether a second pass follows on every step, moved or not: the first is of some rows."""
        return self.samples.first_rows is not None

    @cached_property
    def keep_output_gradients(self) -> bool:
        """Whether second gradients are of recorded forwards, however a step is called."""
        return self.samples.keeps_output_gradients

    @cached_property
    def guard_first_pass(self) -> bool:
        """Whether what the first pass writes without gradient is left to another forward."""
        return self.always_pass_twice or self.samples.looks_first

    @cached_property
    def needs_norm_of_each(self) -> bool:
        return self.ascent.needs_norm_of_each

    @cached_property
    def ascend_on_device(self) -> bool:
        """Whether nobody needs a number on the host between both gradients."""
        policy, observers = self.policy, self.observers.values()
        looks = policy.looks_at_norm or policy.looks_at_loss
        asked = [self.ascent.direction, *(part.observe for part in observers)]
        return not looks and all(map(stays_on_device, asked))

    @cached_property
    def finish_on_device(self) -> bool:
        """Whether nobody needs one to make the direction of both."""
        asked = [self.combine.combine, *(part.learn for part in self.learners.values())]
        return all(map(stays_on_device, asked))

    @cached_property
    def keep_first_gradient(self) -> bool:
        return any(part.needs_first_gradient for part in self.with_memory.values())

    @cached_property
    def observers(self) -> dict[str, MemoryPart]:
        return {n: p for n, p in self.with_memory.items() if _defines(p, MemoryPart, "observe")}

    @cached_property
    def learners(self) -> dict[str, MemoryPart]:
        return {n: p for n, p in self.with_memory.items() if _defines(p, MemoryPart, "learn")}

    @cached_property
    def keep_tensors(self) -> dict[str, MemoryPart]:
        """Those whose memory may have tensors, so that every checkpoint has a place for them."""
        changed = self.observers | self.learners | self.before_base_step
        return {n: p for n, p in self.with_memory.items() if n in changed and p.keeps_tensors}

    @cached_property
    def replays(self) -> bool:
        """Whether the random state before the first pass may be needed again."""
        return not self.policy.never_fires or self.move_before_pass

    @cached_property
    def movers(self) -> dict[str, Part]:
        """Those that move the weights before the first pass."""
        return {n: p for n, p in self.by_name.items() if _defines(p, Part, "before_pass")}

    @property
    def move_before_pass(self) -> bool:
        return bool(self.movers)

    @cached_property
    def compares(self) -> tuple[str, Part] | None:
        """The part that compares the model's outputs with those of other weights; one at most."""
        found = [(n, p) for n, p in self.by_name.items() if _defines(p, Part, "other_weights")]
        if len(found) > 1:
            raise ValueError(f"{found[0][1]!r} and {found[1][1]!r} both compare outputs: use one")
        return found[0] if found else None

    @property
    def take_one_gradient(self) -> bool:
        """Whether a step is one pass by nature, so that a bare ``step()`` after it is all of it."""
        acts = self.move_before_pass or bool(self.before_base_step)
        return acts and self.policy.never_fires

    @cached_property
    def before_base_step(self) -> dict[str, MemoryPart]:
        defining = (MemoryPart, "before_base_step")
        return {n: p for n, p in self.with_memory.items() if _defines(p, *defining)}

    @cached_property
    def after_base_step(self) -> dict[str, Part]:
        return {n: p for n, p in self.by_name.items() if _defines(p, Part, "after_base_step")}


def _defines(part: Part, base: type[Part], method: str) -> bool:
    """Whether the part has a method of its own where the base does nothing."""
    return getattr(type(part), method) is not getattr(base, method)


def refuse_parameters(
    method: type, base: object, model: object, given: Mapping[str, object]
) -> None:
    """Say what to write to who gave parameters and a class where an optimizer is wrapped.

    ``given`` are the keywords that are worth repeating: those of the optimizer among them.
    """
    kind = given.get("base_optimizer", model)
    a_class = inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)
    if isinstance(base, torch.optim.Optimizer) or not (a_class or _are_parameters(base)):
        return
    usual = {"rho": 0.05, "total_steps": None, "replay": False, "max_norm": None}
    own = {k: v for k, v in given.items() if k in usual and v != usual[k]}
    foreign = {"base_optimizer", "adaptive"}  # keywords of another library's SAM
    theirs = {k: v for k, v in given.items() if k not in usual.keys() | foreign} or {"lr": 0.1}
    optimizer = kind.__name__ if a_class and inspect.isclass(kind) else "SGD"
    known = hasattr(torch.optim, optimizer)
    adaptive = bool(given.get("adaptive"))
    shown = "ASAM" if adaptive and method.__name__ == "SAM" else method.__name__
    name = getattr(method, "registered_as", "") or method.__name__
    raise TypeError(
        messages.PARAMETERS_GIVEN.format(
            method=shown,
            name="asam" if adaptive and name == "sam" else name,
            optimizer=f"torch.optim.{optimizer}" if known else optimizer,
            by_name=repr(optimizer.lower()).replace("'", '"') if known else optimizer,
            theirs=_as_keywords(theirs),
            own=_as_keywords(own),
        )
        + (f"\n{messages.ADAPTIVE}" if adaptive else "")
    )


def _are_parameters(given: object) -> bool:
    """Whether it is the model, or parameters in any form that torch's optimizers take."""
    several = list(cast(list[object], given)) if isinstance(given, list | tuple) else [given]
    return bool(several) and all(
        isinstance(one, nn.Module | Tensor | dict | tuple) or hasattr(one, "__next__")
        for one in several
    )


def _as_keywords(given: Mapping[str, object]) -> str:
    return "".join(f", {name}={value!r}" for name, value in given.items())


def refuse_unknown(method: type, unknown: Mapping[str, object]) -> None:
    """Python's own refusal would name the class at the end of the chain, not the user's."""
    if unknown:
        raise TypeError(
            f"{method.__name__} has no keyword {' or '.join(unknown)}. What the optimizer takes, "
            "such as lr, is given to it before it is wrapped."
            + (f" {messages.ADAPTIVE}" if "adaptive" in unknown else "")
        )


def check_base(base: Any, wrapper: type) -> torch.optim.Optimizer:
    """``base`` if it can be wrapped, or an error that says what to pass instead."""
    if inspect.isclass(base) and issubclass(base, torch.optim.Optimizer):
        raise TypeError(
            f"base must be an optimizer instance, got the class {base.__name__}: pass "
            f"{base.__name__}(model.parameters(), lr=...)"
        )
    if _are_several(base):
        raise TypeError(
            "base must be one optimizer, got several: aesam.Together(first, second) makes one of "
            "them, with one norm and one decision"
        )
    if not isinstance(base, torch.optim.Optimizer):
        raise TypeError(
            "base must be a torch.optim.Optimizer instance, such as "
            f"SGD(model.parameters(), lr=0.1), got {type(base).__name__}"
        )
    if isinstance(base, wrapper):
        raise TypeError(f"base is sharpness-aware already ({type(base).__name__}): wrap its .base")
    found = bases.holders(base)
    if not found:
        raise TypeError(
            f"base {type(base).__name__} did not run the constructor of torch.optim.Optimizer and "
            "shares no parameter groups with an optimizer inside it: use another base optimizer"
        )
    for kind in dict.fromkeys(map(type, found)):
        if "rho" in inspect.signature(kind).parameters:
            raise TypeError(
                f"base {kind.__name__} has a setting rho of its own, which would be taken for "
                "the radius of the ascent: use another base optimizer"
            )
    if needs_closure(base):
        raise TypeError(
            f"base must be able to step() without a closure, which {type(base).__name__} is not: "
            "it takes gradients of its own inside a step"
        )
    return base


def _are_several(given: object) -> bool:
    several = cast(list[object], given) if isinstance(given, list | tuple) else []
    return any(isinstance(one, torch.optim.Optimizer) for one in several)


def check_model(model: object, base: torch.optim.Optimizer) -> nn.Module | None:
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(
            "model must be the torch.nn.Module itself, whose buffers are to be guarded, or None, "
            f"got {type(model).__name__}"
        )
    if model is not None and not _shares_parameters(model, base):
        warnings.warn(
            "model has none of the optimizer's parameters, so its buffers are guarded and no "
            "others: pass the model that is trained",
            stacklevel=frames_to_user(),
        )
    return model


def refuse_flat_shards(model: nn.Module | None, base: torch.optim.Optimizer) -> None:
    """FSDP1 keeps shards as plain tensors: each process would decide on its own norm."""
    params = [p for group in base.param_groups for p in group["params"]]
    flat = any(
        getattr(p, "_fsdp_flattened", False) or type(p).__name__ == "FlatParameter" for p in params
    )
    modules: Iterable[nn.Module] = [] if model is None else model.modules()
    if flat or any(type(m).__name__ == "FullyShardedDataParallel" for m in modules):
        raise TypeError(
            "FullyShardedDataParallel (FSDP1) hides which tensors are shards, so processes would "
            "decide on norms of their own and wait for each other for ever: use FSDP2, "
            "torch.distributed.fsdp.fully_shard(model)"
        )


def _shares_parameters(model: nn.Module, base: torch.optim.Optimizer) -> bool:
    held = {id(p) for p in model.parameters()}
    trained = [p for group in base.param_groups for p in group["params"]]
    return not held or not trained or any(id(p) in held for p in trained)


def check_part(name: str, part: object, kind: type[Kind]) -> Kind:
    if isinstance(part, type):
        raise TypeError(f"{name} must be an instance, got the class {part.__name__}: call it")
    if not isinstance(part, kind):
        raise TypeError(
            f"{name} must be a {kind.__name__} (see {kind.__module__}), got {part!r} of type "
            f"{type(part).__name__}"
        )
    return part


def check_parts(parts: Parts, model: nn.Module | None, base: torch.optim.Optimizer) -> None:
    """Refuse parts that do not go together, or with the model or the base."""
    if not (parts.ascent.has_second_gradient or parts.policy.never_fires):
        raise ValueError(
            f"{parts.ascent!r} takes no second gradient, which {parts.policy!r} asks for: use "
            "policy=Never(), or another ascent"
        )
    if parts.always_pass_twice:
        _check_first_rows(parts)
    if parts.samples.splits > 1 and not (parts.move_before_pass and parts.policy.never_fires):
        raise ValueError(
            f"{parts.samples!r} is for a gradient at several places: it goes with policy=Never() "
            "and an ascent that moves the weights before the first pass, FilterNoise() for instance"
        )
    for part in parts.by_name.values():
        part.check_model(model, base)
    if parts.compares is not None:
        _check_compared(parts.compares[1], parts, model)


def _check_compared(part: Part, parts: Parts, model: nn.Module | None) -> None:
    """Refuse what cannot be compared with the outputs of other weights."""
    if not parts.policy.never_fires or parts.needs_losses or parts.move_before_pass:
        raise ValueError(f"{part!r} takes one gradient a step at w: use policy=Never() alone")
    if model is None:
        raise ValueError(f"{part!r} needs the model whose outputs are compared: pass it as model")
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(f"{part!r} cannot hear a ScriptModule: give the module it was made of")


def _check_first_rows(parts: Parts) -> None:
    """Refuse what cannot do with the first gradient of some rows."""
    if parts.policy.never_fires:
        raise ValueError(f"{parts.samples!r} is for the ascent, which {parts.policy!r} never makes")
    if parts.move_before_pass:
        raise ValueError(f"{parts.samples!r} cannot be combined with {parts.ascent!r}")
    whole = [p for p in parts.with_memory.values() if p.needs_first_gradient]
    if not isinstance(parts.between, Plain) and parts.between not in whole:
        whole.append(parts.between)
    if whole:
        raise ValueError(
            f"{whole[0]!r} needs the gradient of the whole batch at w, which {parts.samples!r} "
            "does not take: use another of the two"
        )


def check_replay(replay: bool, model: nn.Module | None, parts: Parts) -> bool:
    """Whether forwards are recorded; refused where, run again, they cannot make what parts need.

    They are with ``replay``, and where a part takes all its second gradients from them. Where the
    first gradient is of some rows, the model's own forward is the second pass.
    """
    kept = parts.keep_output_gradients
    if not checks.flag("replay", replay) and not kept:
        return False
    asked = repr(parts.samples) if kept else "replay=True"
    if model is None:
        raise ValueError(
            f"{asked} needs the model whose forwards are to be run again: pass it as model"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            f"{asked} cannot record a ScriptModule: give the module that it was made of, or use "
            f"{'SAM with step(closure)' if kept else 'step(closure)'}"
        )
    if parts.always_pass_twice:
        return True
    if parts.needs_losses:
        raise ValueError(
            f"replay=True cannot be combined with {parts.samples!r}, which selects rows: a bare "
            "step() does not know their losses. Use step(losses)."
        )
    if parts.move_before_pass and not parts.take_one_gradient:
        raise ValueError(
            f"{asked} cannot be combined with a part that moves the weights before the first "
            f"pass: {'use another of the two' if kept else 'use step(closure)'}"
        )
    if parts.policy.looks_at_loss and not kept:
        raise ValueError(
            f"replay=True cannot be combined with {parts.policy!r}, which looks at the loss: a "
            "bare step() does not know it. Use step(closure)."
        )
    return True


def check_local_ascent(
    given: object, replay: bool, parts: Parts, base: torch.optim.Optimizer
) -> bool:
    """Whether each process ascends along its own gradient; refused where that cannot be right."""
    local = checks.flag("local_ascent", given)
    if local and replay and parts.always_pass_twice:
        raise ValueError(
            f"local_ascent=True cannot be combined with replay=True and {parts.samples!r}, whose "
            "gradient is averaged in the model's forward: use step(losses), or leave it out"
        )
    if local and (parts.observers.keys() | parts.learners.keys()) & {"ascent"}:
        raise ValueError(
            f"local_ascent=True cannot be used with {type(parts.ascent).__name__}, which remembers "
            "gradients: each process would remember its own, and a checkpoint has one memory"
        )
    if local and not tensors.are_plain([p for g in base.param_groups for p in g["params"]]):
        raise ValueError(messages.LOCAL_ASCENT_SHARDED)
    return local


def check_compensate(given: object) -> float | None:
    """The largest factor on the radius, or None for none."""
    if given is None:
        return None
    allowed = "a finite number >= 1, the largest factor on rho, or None"
    number = checks.real("compensate", given, allowed)
    return checks.real("compensate", given, allowed, within=1.0 <= number < float("inf"))


def set_default_radius(base: torch.optim.Optimizer, rho: float) -> None:
    """Give each group without a ``rho`` of its own the default, and later groups too."""
    for holder in (found := bases.holders(base)):
        inherited: Any = holder.defaults.get("rho")  # of an earlier wrapper around the same base
        for group in holder.param_groups:
            if group.get("rho", inherited) != inherited:
                checks.at_least_zero("rho of a parameter group", group["rho"])
    for holder in found:
        inherited = holder.defaults.get("rho")
        for group in holder.param_groups:
            if group.get("rho", inherited) == inherited:
                group["rho"] = rho
        holder.defaults["rho"] = rho
    base.defaults["rho"] = rho


def keep_radius_on_load(base: torch.optim.Optimizer) -> None:
    """A plain checkpoint loaded into the base has no ``rho``: its groups keep theirs.

    One of the wrapper's has more than the base's, which its lazy initialisation would stumble over.
    """
    for holder in bases.holders(base):
        holder.register_load_state_dict_pre_hook(_for_base)


def _for_base(base: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any] | None:
    groups = saved.get("param_groups", [])
    if len(groups) != len(base.param_groups) or "state" not in saved:
        return None  # torch says what is wrong
    kept = [
        {**group, "rho": group.get("rho", own.get("rho", base.defaults["rho"]))}
        for own, group in zip(base.param_groups, groups, strict=True)
    ]
    return {**saved, **layout.without_ours(saved["state"], kept)}
