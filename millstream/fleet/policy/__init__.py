"""Policy of a fleet: on which replica each session goes, which wait, which move, how many replicas there are.
Pure: no Ray, threads or clock."""
