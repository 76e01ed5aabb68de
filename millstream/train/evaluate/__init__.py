"""Evaluation of how well generated clips keep to their prompts, judged by classifiers that were trained on
renders alone."""
