"""The same digits with Keras 3 on torch: ``fit`` with a train step that hands ``step`` a closure.

KERAS_BACKEND=torch python examples/with_keras.py
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # before Keras is imported

import keras
import torch
from sklearn.datasets import load_digits

import aesam

EPOCHS, BATCH = 5, 64


class SharpnessAwareModel(keras.Sequential):
    """A Keras model whose weights are trained by an optimizer of torch; ``fit`` is Keras's."""

    sharpness_aware: aesam.SharpnessAware

    def train_step(self, data: tuple[torch.Tensor, torch.Tensor]) -> dict[str, float]:
        x, y = data
        outputs: list[torch.Tensor] = []

        def closure() -> torch.Tensor:
            self.zero_grad()
            outputs.append(self(x, training=True))
            loss = self.compute_loss(x, y, outputs[-1])
            loss.backward()
            return loss

        loss = self.sharpness_aware.step(closure).detach()
        for metric in self.metrics:  # those of the first pass, at w
            of_loss = metric.name == "loss"
            metric.update_state(*((loss,) if of_loss else (y, outputs[0].detach())))
        return {metric.name: metric.result() for metric in self.metrics}


def main() -> None:
    keras.utils.set_random_seed(0)
    digits = load_digits()
    x, y = digits.data.astype("float32") / 16, digits.target
    layers = keras.layers
    model = SharpnessAwareModel(
        [
            layers.Input((64,)),
            layers.Dense(64),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dense(10),
        ]
    )
    base = torch.optim.SGD((v.value for v in model.trainable_variables), lr=0.1, momentum=0.9)
    steps = EPOCHS * -(-len(x) // BATCH)
    model.sharpness_aware = aesam.AESAM(base, model, total_steps=steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)

    right = model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"]
    share = model.sharpness_aware.sam_fraction
    print(f"{right:.1%} correct in training, second gradient on {share:.0%} of the steps")


if __name__ == "__main__":
    main()
