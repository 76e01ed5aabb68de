"""Server side: encoding and video files for now."""
