"""A training run: its loop, what it keeps, whom it tells, and how it goes on after a stop."""
