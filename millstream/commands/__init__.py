"""What each command does, apart from how its options are spelled (`cli/main.py`)."""
