"""``python -m dalsegno.cli``."""

from dalsegno.cli.app import main

main()
