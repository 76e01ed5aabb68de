"""What turns gradients into weights, whatever part of them a rank holds."""
