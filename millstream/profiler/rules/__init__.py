"""Bottleneck of a run, judged from facts alone: nothing here knows a trace."""
