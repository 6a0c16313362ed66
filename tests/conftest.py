import torch
from hypothesis import settings
from support.fixtures_compatibility import matrix

__all__ = ["matrix"]

#: Programs that tests start in processes of their own, and a plugin that some tests load.
collect_ignore = ["support/in_keras.py", "support/small_cifar.py", "support/watch.py"]

torch.set_num_threads(1)  # the problems are tiny: threads would only wait for each other
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")
