"""Chapter 10: what the processor does while the device should be busy."""
