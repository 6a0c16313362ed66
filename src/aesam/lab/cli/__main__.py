"""``python -m aesam.lab.cli`` is ``aesam``."""

import sys

from aesam.lab.cli import main

sys.exit(main())
