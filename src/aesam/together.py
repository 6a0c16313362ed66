"""Several optimizers as one: one list of parameter groups, one step, one state dict."""

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor


class Together(torch.optim.Optimizer):
    """Several optimizers, each for its own parameters, as one.

    ``torch.optim.Muon`` takes matrices only, so it goes together with another for the rest. Wrapped
    in a method, all of them have one gradient norm and one decision. Groups and state are those of
    the members, by reference, so that learning-rate schedulers and the members agree.

    Args:
        members: optimizers, at least one; no parameter may be in two of them. An optimizer that is
            sharpness-aware already goes around ``Together``, not into it.

    >>> matrix, bias = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    >>> muon = torch.optim.Muon([matrix], lr=0.02)
    >>> adamw = torch.optim.AdamW([bias], lr=1e-3)
    >>> opt = Together(muon, adamw)
    >>> [group["lr"] for group in opt.param_groups]
    [0.02, 0.001]
    """

    members: tuple[torch.optim.Optimizer, ...]

    def __init__(self, *members: torch.optim.Optimizer) -> None:
        self.members = _checked(members)
        #: What holds for every group: settings that all members have, those of the first.
        self.defaults = _in_common([member.defaults for member in members])
        # Which member a group is of and its place there, in the order in which groups came: one
        # that is added later is last, whoever's it is, so that schedulers find theirs again.
        self._places: list[tuple[int, int]] = []
        # torch's own constructor would copy the groups; this is what is wanted of it.
        super().__setstate__({})
        self._find_groups()

    # Shared with the members -------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all members; each is the member's own."""
        self._find_groups()
        return [self.members[m].param_groups[i] for m, i in self._places]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        for member, own in zip(self.members, self._by_member(groups), strict=True):
            member.param_groups = own

    def _find_groups(self) -> None:
        known = set(self._places)
        for m, member in enumerate(self.members):
            found = [(m, i) for i in range(len(member.param_groups)) if (m, i) not in known]
            self._places.extend(found)
        if len(self._places) > len(known):
            _refuse_shared(self.members)

    def _by_member(self, groups: list[Any]) -> list[list[Any]]:
        """What is there for each group, for each member in the order that it has them in."""
        self._find_groups()
        if len(groups) != len(self._places):
            raise ValueError(
                f"{len(groups)} parameter groups were given, and the members have "
                f"{len(self._places)}"
            )
        by_place = dict(zip(self._places, groups, strict=True))
        return [
            [by_place[m, i] for i in range(len(member.param_groups))]
            for m, member in enumerate(self.members)
        ]

    @property
    def state(self) -> "StateOfAll":
        """The members' state, as one."""
        return StateOfAll(self.members)

    @state.setter
    def state(self, state: MutableMapping[Any, Any]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        by_member = [set(_parameters(member)) for member in self.members]
        homeless = [key for key in state if not any(key in own for own in by_member)]
        if homeless:
            raise KeyError(homeless[0])
        for member, own in zip(self.members, by_member, strict=True):
            kept = {key: value for key, value in state.items() if key in own}
            member.state = defaultdict(dict, kept)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused where there are several members: it is for one of them to train the group."""
        only, *others = self.members
        if others:
            raise TypeError(
                "add_param_group: Together has several members, so add the group to the one that "
                "is to train it, for example together.members[0].add_param_group(...)"
            )
        only.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        for member in self.members:
            member.zero_grad(set_to_none)

    # Training ----------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Let every member take its step; the closure, if any, is called once.

        Args:
            closure: computes the loss, backpropagates and returns it; None, the default, where
                the gradients are there already.
        """
        self._find_groups()  # and with them a parameter that was given to two members since
        for hook in self._optimizer_step_pre_hooks.values():
            hook(self, (self, closure), {})
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for member in self.members:
            member.step()
        for hook in self._optimizer_step_post_hooks.values():
            hook(self, (self, closure), {})
        return loss

    def train(self) -> None:
        """Tell members with two sets of weights that training goes on."""
        self._switch("train")

    def eval(self) -> None:
        """Tell members with two sets of weights that the model is to be evaluated or saved."""
        self._switch("eval")

    def _switch(self, mode: str) -> None:
        for member in self.members:
            switch = getattr(member, mode, None)
            if callable(switch):
                switch()

    # Checkpointing and copying -----------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """One state dict of torch's form, parameters numbered through all groups."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        state: dict[Any, Any] = {}
        groups: dict[tuple[int, int], dict[str, Any]] = {}
        numbers = self._numbers()
        for m, member in enumerate(self.members):
            own = member.state_dict()
            theirs = _numbered(own["param_groups"])
            number = {n: numbers[place] for n, place in _at(m, theirs).items()}
            for n, entry in own["state"].items():
                state[number[n] if n in number else _named(m, n)] = entry
            for i, group in enumerate(own["param_groups"]):
                groups[m, i] = {**group, "params": [number[n] for n in group["params"]]}
        saved = {
            "state": {n: state[n] for n in sorted(state, key=_numbers_first)},
            "param_groups": [groups[place] for place in self._places],
        }
        for hook in self._optimizer_state_dict_post_hooks.values():
            saved = hook(self, saved) or saved
        return saved

    def _numbers(self) -> dict[tuple[int, int, int], int]:
        """The number in a state dict of each parameter, by member, group and place in it."""
        self._find_groups()
        sizes = [(m, i, len(self.members[m].param_groups[i]["params"])) for m, i in self._places]
        places = [(m, i, j) for m, i, size in sizes for j in range(size)]
        return {place: n for n, place in enumerate(places)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give every member its part; if one refuses it, nothing was loaded."""
        state_dict = copy.copy(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        state = state_dict["state"]
        parts = [
            {"state": _part_of(state, m, own), "param_groups": own}
            for m, own in enumerate(self._by_member(state_dict["param_groups"]))
        ]
        before = [(member, member.state, member.param_groups) for member in self.members]
        try:
            for member, part in zip(self.members, parts, strict=True):
                member.load_state_dict(part)
        except BaseException:
            for member, kept, groups in before:  # torch replaces both, never changes them
                member.state, member.param_groups = kept, groups
            raise
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"members": self.members, "defaults": self.defaults, "_places": self._places}

    def __repr__(self) -> str:
        lines = [f"    {line}" for member in self.members for line in repr(member).splitlines()]
        return "\n".join(["Together (", *lines, ")"])

    def _patch_step_function(self) -> None:
        # Every member runs the global step hooks; torch would run them here once more.
        self._zero_grad_profile_name = f"Optimizer.zero_grad#{type(self).__name__}.zero_grad"


class StateOfAll(MutableMapping[Any, Any]):
    """The state of several optimizers as one mapping; what is written goes to the owner."""

    def __init__(self, members: tuple[torch.optim.Optimizer, ...]) -> None:
        self._members = members

    def __getitem__(self, key: Any) -> Any:
        return self._of_owner(key)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._of_owner(key)[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._of_owner(key)[key]

    def __contains__(self, key: object) -> bool:
        return any(key in member.state for member in self._members)

    def __iter__(self) -> Iterator[Any]:
        return (key for member in self._members for key in member.state)

    def __len__(self) -> int:
        return sum(len(member.state) for member in self._members)

    def __repr__(self) -> str:
        return repr(dict(self))

    def _of_owner(self, key: Any) -> MutableMapping[Any, Any]:
        for member in self._members:
            if key in member.state:
                return member.state
        for member in self._members:
            if any(p is key for p in _parameters(member)):
                return member.state  # makes an entry, as torch's does
        raise KeyError(key)


def _parameters(member: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in member.param_groups for p in group["params"]]


def _numbered(groups: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """Of each number in the groups of a state dict the group and the place in it."""
    return {n: (i, j) for i, group in enumerate(groups) for j, n in enumerate(group["params"])}


def _at(m: int, numbered: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int, int]]:
    return {n: (m, i, j) for n, (i, j) in numbered.items()}


def _named(m: int, key: object) -> str:
    """What a member keeps under a name instead of for a parameter."""
    if not isinstance(key, str):
        raise TypeError(f"member {m} keeps state under {key!r}, which is no parameter and no name")
    return f"{key} of member {m}"


def _part_of(state: dict[Any, Any], m: int, groups: list[dict[str, Any]]) -> dict[Any, Any]:
    """A member's part of the state in a state dict."""
    of_parameters = {n: state[n] for n in _numbered(groups) if n in state}
    end = _named(m, "")
    names = [key for key in state if isinstance(key, str) and key.endswith(end)]
    return {**of_parameters, **{key.removesuffix(end): state[key] for key in names}}


def _numbers_first(key: int | str) -> tuple[bool, int | str]:
    return isinstance(key, str), key


def _in_common(defaults: list[dict[str, Any]]) -> dict[str, Any]:
    return {k: v for k, v in defaults[0].items() if all(k in other for other in defaults)}


def _checked(members: tuple[Any, ...]) -> tuple[torch.optim.Optimizer, ...]:
    if not members:
        raise TypeError("Together takes at least one optimizer: Together(muon, adamw)")
    for member in members:
        if not isinstance(member, torch.optim.Optimizer):
            raise TypeError(
                "Together takes optimizers that are made already, one after the other, as in "
                f"Together(muon, adamw), got a {type(member).__name__}"
            )
        _check_member(member, type(member).__name__)
    _refuse_shared(members)
    return members


def _check_member(member: torch.optim.Optimizer, kind: str) -> None:
    if hasattr(member, "needs_second_pass"):
        raise TypeError(
            f"a member is sharpness-aware already ({kind}): put Together around the base "
            "optimizers and the method around Together, for one norm and one decision"
        )
    if needs_closure(member):
        raise TypeError(f"{kind} takes gradients of its own inside a step, so it stays alone")
    if "_optimizer_load_state_dict_pre_hooks" not in vars(member):
        raise TypeError(
            f"{kind} is wrapped around another optimizer and did not run the constructor of "
            "torch.optim.Optimizer, so it cannot be a member: put it around Together"
        )
    more = sorted(set(member.state_dict()) - {"state", "param_groups"})
    if more:
        raise TypeError(
            f"{kind} has {', '.join(more)} in its state dict, for which there is no place in that "
            "of several: use another optimizer"
        )


def _refuse_shared(members: tuple[torch.optim.Optimizer, ...]) -> None:
    owner: dict[int, int] = {}
    for m, member in enumerate(members):
        for p in _parameters(member):
            other = owner.setdefault(id(p), m)
            if other != m:
                raise ValueError(
                    f"a parameter of shape {tuple(p.shape)} is in two members, "
                    f"{type(members[other]).__name__} and {type(member).__name__}: give each "
                    "parameter to one of them"
                )


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether ``step`` cannot do without a closure, as that of LBFGS cannot."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
