"""Private: how a step is taken, kept and checked. Nothing outside the package imports it."""
