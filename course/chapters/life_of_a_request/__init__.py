"""Chapter 8: what happens to a request between its arrival and its last token, in a server of a few lines and
in ours."""
