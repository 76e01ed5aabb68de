"""The failure lab: scripts that fail, what one sees, the tool that finds it, the fix."""
