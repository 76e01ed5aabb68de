"""Diagrams as SVG, written by code: boxes, arrows and words on a grid of pixels. Knows nothing of what they
show."""

from __future__ import annotations

from html import escape

INK = "#1f2933"
PAPER = "#ffffff"
LINE = "#7b8794"
COLOURS = ("#2a6f97", "#e07a5f", "#588157", "#e9a23b", "#7d5ba6", "#4a5568")
"""One for each rank, or for each part of what travels."""


class Svg:
    def __init__(self, width: int, height: int, title: str) -> None:
        assert min(width, height) > 0, f"a picture of {width} x {height}"
        self._size = (width, height)
        self._title = title
        self._parts = list[str]()

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str = PAPER, text: str = ""
    ) -> None:
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}" stroke="{LINE}"/>'
        )
        if text:
            self.text(
                x + width / 2, y + height / 2 + 5, text, fill=PAPER if fill != PAPER else INK, middle=True
            )

    def text(
        self, x: float, y: float, text: str, *, fill: str = INK, middle: bool = False, size: int = 14
    ) -> None:
        anchor = ' text-anchor="middle"' if middle else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{fill}" font-size="{size}"{anchor}>{escape(text)}</text>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
        self._parts.append(f'<line {ends} stroke="{INK}" stroke-width="2" marker-end="url(#head)"/>')

    def line(self, points: list[tuple[float, float]], *, colour: str) -> None:
        along = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{along}" fill="none" stroke="{colour}" stroke-width="2.5"/>')

    def __str__(self) -> str:
        width, height = self._size
        head = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>'
        )
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="sans-serif" role="img"><title>{escape(self._title)}</title>'
        )
        paper = f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>'
        return "\n".join([opening, head, paper, *self._parts, "</svg>", ""])
