"""Video files in and out, encoding for screens, recording."""
