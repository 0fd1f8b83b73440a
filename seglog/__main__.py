"""`python -m seglog`: the same as the command `seglog`."""

from .cli import main

main()
