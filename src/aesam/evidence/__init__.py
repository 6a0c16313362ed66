"""What holds: every method with settings of its own, fresh seeds, the strongest controls."""
