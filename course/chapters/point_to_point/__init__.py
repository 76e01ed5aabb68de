"""Chapter 2: messages from one rank to another."""
