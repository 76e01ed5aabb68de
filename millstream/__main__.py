"""`python -m millstream` is `millstream`."""

from millstream.cli.main import main

main()
