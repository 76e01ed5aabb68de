"""Scripted people at a running server, and what they saw. They come as clients do and know nothing of the
server's code."""
