"""The same digits with skorch, which hands ``step`` a closure by itself.

python examples/with_skorch.py
"""

import torch
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import nn

import aesam

EPOCHS, BATCH = 5, 64


class SharpnessAwareClassifier(NeuralNetClassifier):
    """Tells the optimizer of the module, whose buffers (BatchNorm's statistics) it guards."""

    def get_params_for_optimizer(self, prefix, named_parameters):
        args, options = super().get_params_for_optimizer(prefix, named_parameters)
        return args, options | {"model": self.module_}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x, y = digits.data.astype("float32") / 16, digits.target
    net = SharpnessAwareClassifier(
        network,
        criterion=nn.CrossEntropyLoss,
        optimizer=aesam.FromParams,
        optimizer__method="ae-sam",
        optimizer__total_steps=EPOCHS * -(-len(x) // BATCH),
        optimizer__momentum=0.9,  # of the SGD inside
        optimizer__max_norm=5.0,  # instead of GradientNormClipping, which clips too early
        lr=0.1,
        batch_size=BATCH,
        max_epochs=EPOCHS,
        train_split=None,
        iterator_train__shuffle=True,
        verbose=0,
    )
    net.fit(x, y)
    share = net.optimizer_.sam_fraction
    print(f"{net.score(x, y):.1%} correct in training, second gradient on {share:.0%} of the steps")


if __name__ == "__main__":
    main()
