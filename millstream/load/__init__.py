"""Scripted people at a running server, and what they saw. A client: it knows the protocol and nothing of the server's code."""
