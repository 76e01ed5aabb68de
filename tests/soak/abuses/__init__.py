"""Abuse of a server on this machine, and what it did to those beside it. It knows the protocols, not the
server's code."""
