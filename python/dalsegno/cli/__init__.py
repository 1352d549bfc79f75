"""The command ``dalsegno``; the same as ``python -m dalsegno.cli``.

Exit codes of all commands: 0 it is well, 1 it is not (damage found, a demonstration failed), 2 the
question could not be answered (wrong arguments, a locked store, an output that cannot be written),
130 interrupted.
"""

from dalsegno.cli.app import main

__all__ = ["main"]
