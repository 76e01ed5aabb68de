"""Sockets and peer connections. Knows no protocol."""
