"""Lab 04: products in 16 bits over weights in 32, and what that needs."""
