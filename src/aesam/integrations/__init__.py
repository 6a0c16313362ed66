"""Trainers of other libraries: each file is imported only when asked for."""
