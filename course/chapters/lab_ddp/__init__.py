"""Lab 02: data parallel written by the reader, held against torch's."""
