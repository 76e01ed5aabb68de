"""The course: chapters whose scripts run, and what runs, grades and shows them."""
