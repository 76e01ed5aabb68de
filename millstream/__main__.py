"""`python -m millstream` is `millstream`."""

from millstream.cli import main

main()
