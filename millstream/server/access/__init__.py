"""Admission of clients, and how much each may ask for."""
