"""Decoder language models: how large they are, how long they take to read and to write, what training them
takes."""
