"""What a run was bound by: traces read, taken apart and judged. No torch."""
