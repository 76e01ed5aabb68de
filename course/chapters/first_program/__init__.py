"""Chapter 1: processes that know their number and find each other."""
