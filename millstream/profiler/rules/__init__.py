"""What a run is bound by, judged from facts alone: nothing here knows a trace."""
