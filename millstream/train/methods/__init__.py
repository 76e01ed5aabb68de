"""How stages learn: one file a method."""
