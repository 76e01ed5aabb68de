"""Abuse of a server on this machine, and what it did to those beside it. A client: it knows the protocols and nothing of the server's code."""
