"""How well generated clips keep to their prompts, judged by classifiers that have only ever seen renders."""
