"""What tests of several processes need."""

import socket


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
