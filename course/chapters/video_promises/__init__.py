"""Video chapter 5: many viewers on one device, what they are promised, and how that is kept."""
