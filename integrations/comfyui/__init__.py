"""Millstream in ComfyUI: streams that are steered and taken frame by frame. See README.md."""

from .nodes import MillstreamClose, MillstreamFrames, MillstreamOpen, MillstreamSteer, MillstreamVideoToVideo

NODE_CLASS_MAPPINGS = {
    each.__name__: each
    for each in (MillstreamOpen, MillstreamSteer, MillstreamFrames, MillstreamVideoToVideo, MillstreamClose)
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "MillstreamOpen": "Millstream Stream",
    "MillstreamSteer": "Millstream Steer",
    "MillstreamFrames": "Millstream Frames",
    "MillstreamVideoToVideo": "Millstream Video to Video",
    "MillstreamClose": "Millstream Close",
}
__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
