"""The reading map: papers and documents of the field by layer, each on one page of our own words with three
questions."""
