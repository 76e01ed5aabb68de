"""A language model small enough to be trained in a chapter, with what serving and learning need of one."""
