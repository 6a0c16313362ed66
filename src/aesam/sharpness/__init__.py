"""How sharp a model's loss is where it stands: gradients, curvature, neighbourhoods and slices.

Every measure takes ``(model, loss, batches)``: ``loss(outputs, targets)`` averages over samples,
and ``batches`` is anything that can be gone through again and again and gives ``(inputs,
targets)``, such as a list or a DataLoader. Batches count by their number of samples, so a short
last one is right.

The model comes back as it was, to the bit: weights, gradients, buffers and modes; so does the
random state. With ``mode="eval"`` (the default) BatchNorm uses its running statistics and dropout
is off; with ``mode="train"`` each batch uses its own, and what dropout and a shuffling loader draw
is the same in every pass, so that one fixed function is measured.

``progress=True`` shows a bar; a function is told ``(done, total)`` instead, in batches, with total
0 where ``batches`` has no length. Results are values, and their ``plot()`` draws them.
"""

from aesam.sharpness.ball import Sharpness, average_sharpness, worst_case_sharpness
from aesam.sharpness.directions import filter_normalized, random_direction
from aesam.sharpness.gradient_norms import (
    FullGradient,
    GradientNorms,
    GradientVariance,
    full_gradient_norm,
    gradient_variance,
    squared_gradient_norms,
)
from aesam.sharpness.hessian import (
    HessianEigenvalues,
    HessianTrace,
    hessian_eigenvalues,
    hessian_trace,
)
from aesam.sharpness.slices import Slice1D, Slice2D, slice_1d, slice_2d

__all__ = [
    "FullGradient",
    "GradientNorms",
    "GradientVariance",
    "HessianEigenvalues",
    "HessianTrace",
    "Sharpness",
    "Slice1D",
    "Slice2D",
    "average_sharpness",
    "filter_normalized",
    "full_gradient_norm",
    "gradient_variance",
    "hessian_eigenvalues",
    "hessian_trace",
    "random_direction",
    "slice_1d",
    "slice_2d",
    "squared_gradient_norms",
    "worst_case_sharpness",
]
