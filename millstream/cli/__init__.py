"""How options are spelled: a command line for every command, and nothing of what it does."""
