"""Video chapter 1: what a model paints is not pictures, and how it becomes pictures while it streams."""
