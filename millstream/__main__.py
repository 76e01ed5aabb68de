"""`python -m millstream` is `millstream`."""

from millstream.commands.main import main

main()
