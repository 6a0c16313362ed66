"""Finding our optimizer inside the wrappers that trainers put around it."""

from aesam.optimizer import SharpnessAware


def unwrap(optimizer: object) -> SharpnessAware:
    """The :class:`SharpnessAware` inside Accelerate's, Lightning's or Fabric's wrapper.

    Lightning's and Fabric's wrappers claim to be instances of it themselves; this is the real one.

    >>> import torch
    >>> from aesam import SAM
    >>> opt = SAM(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
    >>> unwrap(opt) is opt
    True
    """
    found = optimizer
    while (inner := getattr(found, "optimizer", None)) is not None:
        found = inner
    if not isinstance(found, SharpnessAware):
        raise TypeError(
            f"there is no sharpness-aware optimizer inside this {type(optimizer).__name__}, only "
            f"a {type(found).__name__}"
        )
    return found
