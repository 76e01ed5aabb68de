"""Chapter 14: where four models live, what a step holds, and how new weights reach whoever samples."""
