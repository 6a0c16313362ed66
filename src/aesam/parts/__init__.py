"""The parts of a step: five questions, and the answers that a method picks from."""
