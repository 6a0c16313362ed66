"""How large the computation is."""

from dataclasses import dataclass

from aesam.lab.errors import unknown


@dataclass(frozen=True)
class Preset:
    """The sizes of one computation.

    Args:
        full_steps: T of the full-batch theorem.
        mini_steps: T of the mini-batch theorem.
        most_steps: where no T of these is large enough for the proof, go on to one that is, up to
            this one.
        larger_steps: T of the corollary with the larger step.
        counter_steps: T of the counter-example.
        repetitions: runs with batches of their own that an expectation is the mean of.
        adaptive_steps: steps to spend on a policy that takes its repetitions one by one.
        functions: random functions that the lemmas are tried on.
        points: random points of each.
    """

    full_steps: tuple[int, ...]
    mini_steps: tuple[int, ...]
    most_steps: int
    larger_steps: tuple[int, ...]
    counter_steps: tuple[int, ...]
    repetitions: int
    adaptive_steps: int
    functions: int
    points: int

    def repetitions_for(self, steps: int, *, one_by_one: bool) -> int:
        """How many repetitions of ``steps`` steps: fewer where each costs a run of its own."""
        if not one_by_one:
            return self.repetitions
        return min(self.repetitions, max(4, self.adaptive_steps // steps))


PRESETS = {
    "small": Preset(
        full_steps=(10, 30, 100, 300),
        mini_steps=(16, 51, 160, 512),
        most_steps=4096,
        larger_steps=(51, 160),
        counter_steps=(4, 16, 64, 256, 1024, 4096),
        repetitions=128,
        adaptive_steps=1024,
        functions=20,
        points=200,
    ),
    "paper": Preset(
        full_steps=(10, 30, 100, 300, 1000, 3000),
        mini_steps=(16, 51, 160, 512, 1600, 4096),
        most_steps=4096,
        larger_steps=(16, 51, 160, 512, 1600, 4096),
        counter_steps=(4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        repetitions=512,
        adaptive_steps=32768,
        functions=100,
        points=400,
    ),
}


def preset_of(name: str) -> Preset:
    """The preset with this name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
