"""Pages and plots for planner, profiler, training and benchmarks. No torch; knows nothing of what it
draws."""
