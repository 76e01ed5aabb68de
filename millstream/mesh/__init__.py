"""Ranks that hold the generator: launch, link, recovery, watchdog."""
