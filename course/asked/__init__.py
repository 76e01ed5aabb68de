"""Questions of the quiz that no chapter asks: language models by the planner, and why scaling stalls."""
