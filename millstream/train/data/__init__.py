"""A painted world of captioned clips, drawn on the fly: no files, no downloads, one seed.

`vocabulary` says what there is, `scene` draws lots, `motion` moves things and camera, `render` paints,
`captions` tells.
"""
