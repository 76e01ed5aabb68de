"""Write one HTML file that loads nothing else: its style, its frame, and tables. Callers decide what is in
it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem;
  color: #1d2328; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.verdict { padding: .7rem 1rem; border-left: 4px solid #5a9367; background: #f1f6f2; }
.verdict.unsure { border-color: #8a8d91; background: #f3f4f5; }
.verdict.no { border-color: #a34a5e; background: #f8f0f2; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
@media (max-width: 700px) { table { display: block; overflow-x: auto; } }
td, th { text-align: left; padding: .25rem .5rem; border-bottom: 1px solid #e3e6e8; }
td.long { overflow-wrap: anywhere; } td.n { white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
tr.no { color: #7b848b; } tr.best { background: #f1f6f2; }
svg { width: 100%; height: auto; font: 13px system-ui, sans-serif; }
.small { font-size: 11.5px; fill: #49525a; }
.limit { stroke: #1d2328; stroke-dasharray: 4 3; } .axis { stroke: #9aa3a9; fill: none; }
.front { stroke: #3b6ea5; fill: none; stroke-width: 1.5; }
.curve { fill: none; stroke-width: 1.5; } code { font-size: 12px; }
p.note { color: #5b656d; font-size: 13px; }
"""


LONG_WORD = 30
"""Letters: a kernel's name, a path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    cells: Sequence[str]
    kind: str = ""
    """best, no, or nothing of the sort."""


def page(title: str, parts: Sequence[str]) -> str:
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def table(heads: Sequence[str], rows: Sequence[Row], *, numeric: Container[int] = ()) -> str:
    """Columns that are `numeric` stand to the right; names that are longer than a column may break
    anywhere."""

    def kind(i: int, text: str) -> str:
        return (
            " class=n"
            if i in numeric
            else " class=long"
            if max(map(len, text.split()), default=0) > LONG_WORD
            else ""
        )

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(f"<{tag}{kind(i, text)}>{escape(text)}</{tag}>" for i, text in enumerate(texts))

    body = "".join(f"<tr class='{row.kind}'>{cells('td', row.cells)}</tr>" for row in rows)
    return f"<table><tr>{cells('th', heads)}</tr>{body}</table>"
