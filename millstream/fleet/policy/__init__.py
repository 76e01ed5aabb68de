"""What a fleet decides: who goes where, who waits, who moves, how many replicas there are. Pure: no Ray, threads or clock."""
