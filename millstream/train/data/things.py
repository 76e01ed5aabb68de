"""The things: each is a function that draws one with the brush. `DRAW` has one for every name in THINGS.

Local coordinates as in `brush`: -1 to 1, u forwards, v downwards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from millstream.train.data.brush import Brush, box, circle, ellipse, polygon, round_light, segment
from millstream.train.data.fields import smooth, turn

WOOD = (0.46, 0.29, 0.17)
INK = (0.10, 0.09, 0.12)
LAMP = (1.0, 0.86, 0.48)


def balloon(b: Brush, u: Tensor, v: Tensor) -> None:
    """A hot air balloon: striped envelope, ropes, basket."""
    top = v + 0.28
    envelope = torch.minimum(
        circle(u, top, 0.70), polygon(u, v, (-0.66, -0.06), (0.66, -0.06), (0.18, 0.62), (-0.18, 0.62))
    )
    belt = u / (1.02 - (top * 0.95).square().clamp(max=0.9)).sqrt()
    stripes = smooth(-0.5, 0.5, torch.sin(belt * 8.2) * 2)
    for side in (-1, 1):
        b.fill(segment(u, v, (0.16 * side, 0.55), (0.12 * side, 0.80), 0.018), b.rgb(*INK), 0.9)
    b.body(envelope, b.paint, round_light(u, top, 0.42) * (0.78 + 0.3 * stripes))
    b.fill(torch.maximum(envelope + 0.02, (v - 0.14).abs() - 0.05), b.paint * 0.45 + 0.5, 0.75)
    b.fill(box(u, v - 0.87, 0.15, 0.11, 0.03), b.rgb(*WOOD), 1.0, 1.1 - 0.3 * (u * 4).clamp(-1, 1))


def boat(b: Brush, u: Tensor, v: Tensor) -> None:
    """A sailing boat: two sails, dark hull, a line of foam."""
    hull = torch.maximum(ellipse(u - 0.02, v - 0.42, 0.86, 0.44), 0.46 - v)
    belly = 0.10 * (1 - ((v + 0.25) / 0.7).square())
    main = torch.maximum(polygon(u + belly, v, (-0.02, -0.96), (-0.02, 0.36), (-0.66, 0.36)), u + 0.02)
    jib = polygon(u - belly, v, (0.07, -0.80), (0.66, 0.34), (0.07, 0.34))
    b.fill(segment(u, v, (0.02, -0.98), (0.02, 0.5), 0.028), b.rgb(*WOOD))
    b.body(main, b.paint, 1.08 - 0.28 * (u + 0.4) - 0.10 * v)
    b.body(jib, b.paint * 0.55 + 0.42, 1.02 - 0.2 * u)
    b.body(hull, b.rgb(0.36, 0.22, 0.15), 1.25 - 0.7 * (v - 0.46))
    b.fill(torch.maximum(hull, (v - 0.53).abs() - 0.045), b.paint, 1.0)
    ripple = 0.03 * torch.sin(u * 11 + 3 * b.time)
    b.fill(box(u, v - 0.84 + ripple, 0.98, 0.035, 0.03), b.rgb(0.92, 0.97, 1.0), 0.6)


def bird(b: Brush, u: Tensor, v: Tensor) -> None:
    """A bird in flight: the wings beat, the far one is darker."""
    beat = torch.sin(b.time * 6.5)
    lift = 0.95 * beat - 0.15
    for far in (True, False):
        p, q = turn(u + (-0.06 if far else 0.10), v + 0.02, -1.05 * lift if not far else -1.05 * lift - 0.25)
        wing = torch.maximum(ellipse(p + 0.10 * q, q + 0.46, 0.30, 0.58), -(p + 0.34 + 0.2 * q))
        tone = 0.62 if far else 1.0
        b.body(wing, b.paint * tone, 1.0 + 0.35 * (q + 0.4).clamp(-0.6, 0.5))
        if not far:
            b.fill(torch.maximum(wing, -q - 0.72), b.paint * 0.8 + 0.16, 0.55)
    tail = polygon(u, v, (-0.98, -0.16), (-0.40, -0.10), (-0.40, 0.14), (-0.90, 0.20))
    b.body(tail, b.paint * 0.8)
    b.body(ellipse(u + 0.02, v - 0.06, 0.58, 0.25), b.paint, round_light(u, v * 3, 0.3))
    b.fill(torch.maximum(ellipse(u - 0.02, v - 0.14, 0.44, 0.15), -v + 0.08), b.paint * 0.4 + 0.58, 0.7)
    b.fill(polygon(u, v, (0.72, -0.20), (1.0, -0.08), (0.70, -0.02)), b.rgb(0.98, 0.70, 0.16))
    b.body(circle(u - 0.58, v + 0.12, 0.21), b.paint, round_light(u - 0.58, v + 0.1, 0.5))
    b.fill(circle(u - 0.65, v + 0.16, 0.05), b.rgb(*INK))


def fish(b: Brush, u: Tensor, v: Tensor) -> None:
    """A round fish with a wagging tail, a fin and stripes."""
    wag = torch.sin(b.time * 5.5)
    bend = 0.10 * wag * (0.4 - u).clamp(min=0)
    w = v + bend
    tail = polygon(u, w, (-0.98, -0.52), (-0.42, -0.02), (-0.42, 0.06), (-0.98, 0.52), (-0.80, 0.0))
    notch = circle(u + 1.12, w, 0.34)
    b.body(torch.maximum(tail, -notch), b.paint * 0.85, 1 + 0.25 * torch.sin(w * 26))
    b.body(
        polygon(u, w, (-0.34, -0.42), (0.06, -0.74), (0.30, -0.40)),
        b.paint * 0.8,
        1 + 0.2 * torch.sin(u * 30),
    )
    b.body(polygon(u, w, (-0.10, 0.36), (0.16, 0.36), (-0.14, 0.68)), b.paint * 0.8)
    body = ellipse(u - 0.16, w, 0.70, 0.47)
    b.body(body, b.paint, round_light(0.2 * u, w * 1.6, 0.42))
    stripes = smooth(0.25, 0.6, torch.cos(u * 11 - 0.9)) * (u < 0.42)
    b.fill(body + 0.03, b.paint * 0.25 + 0.7, stripes * 0.75)
    b.fill(circle(u - 0.56, w + 0.12, 0.125), b.rgb(1, 1, 1))
    b.fill(circle(u - 0.59, w + 0.12, 0.068), b.rgb(*INK))
    b.fill(segment(u, w, (0.70, 0.14), (0.80, 0.10), 0.025), b.ink, 0.8)


def lantern(b: Brush, u: Tensor, v: Tensor) -> None:
    """A paper lantern that glows from inside."""
    body = box(u, v + 0.08, 0.56, 0.66, 0.40)
    b.glow(body, b.paint * 0.9 + 0.1, 0.28, 0.6)
    ribs = 0.90 + 0.10 * torch.cos((v + 0.08) * 22)
    core = torch.exp(-((u * 1.7).square() + ((v - 0.12) * 1.5).square()))
    b.body(body, b.paint, (0.86 + 0.25 * core) * ribs)
    b.mix(b.rgb(1.0, 0.93, 0.70), core * 0.42 * b.inside(body))
    b.fill(box(u, v + 0.78, 0.27, 0.075, 0.03), b.rgb(*INK) * 1.6)
    b.fill(box(u, v - 0.62, 0.27, 0.075, 0.03), b.rgb(*INK) * 1.6)
    sway = 0.06 * torch.sin(b.time * 2.1 + v * 3)
    b.fill(segment(u + sway * (v - 0.6), v, (0.0, 0.66), (0.0, 0.98), 0.045), b.paint * 0.9)


def kite(b: Brush, u: Tensor, v: Tensor) -> None:
    """A diamond in two tones with a long tail of bows."""
    wave = 0.12 * torch.sin(v * 7 - 4 * b.time) * (v - 0.2).clamp(min=0) + 0.25 * (v - 0.3).clamp(min=0)
    tail = segment(u + wave, v, (0.0, 0.3), (0.0, 1.15), 0.022)
    b.fill(tail, b.rgb(0.25, 0.22, 0.25), 0.9)
    for bow in (0.60, 0.84, 1.08):
        p = (u + wave).abs()
        b.fill(
            polygon(p, v, (0.0, bow - 0.015), (0.15, bow - 0.085), (0.15, bow + 0.085), (0.0, bow + 0.015)),
            b.paint * 0.8,
        )
    diamond = polygon(u, v, (0.0, -0.98), (0.66, -0.28), (0.0, 0.46), (-0.66, -0.28))
    halves = torch.where((u > 0) ^ (v > -0.28), 1.12, 0.74)
    b.body(diamond, b.paint, halves)
    b.fill(
        torch.maximum(diamond + 0.03, (torch.minimum(u.abs(), (v + 0.28).abs())) - 0.022),
        b.paint * 0.3 + 0.62,
        0.85,
    )


def comet(b: Brush, u: Tensor, v: Tensor) -> None:
    """A bright head and a tail that frays out behind it."""
    back = (0.62 - u).clamp(min=0)
    spread = 0.10 + 0.17 * back
    curve = v + 0.05 * back.square()
    tail = torch.exp(-(curve / spread).square()) * torch.exp(back * -0.72) * smooth(0.74, 0.6, u)
    fray = 0.78 + 0.22 * torch.sin(curve / spread * 7 + 1.3 * torch.sin(back * 3 - 3 * b.time))
    streak = (tail * fray * smooth(1.9, 0.9, back)).clamp_(0, 1)
    b.mix(b.paint * 1.05, streak * 0.95)
    thin = torch.exp(-(curve / spread * 2.6).square()) * torch.exp(back * -1.5) * (u < 0.66)
    b.mix(b.paint * 0.4 + 0.6, thin * 0.75)
    head = circle(u - 0.62, v, 0.21)
    b.glow(head, b.paint * 0.75 + 0.25, 0.14, 0.7)
    b.fill(head, b.paint * 0.75 + 0.25)
    b.mix(b.rgb(1, 0.99, 0.94), (1.25 - circle(u - 0.64, v, 0.0) * 6.5).clamp(0, 1))


def train(b: Brush, u: Tensor, v: Tensor) -> None:
    """A steam engine and a carriage, with smoke that is left behind."""
    for puff in range(4):
        age = (b.time * 0.55 + puff / 4).remainder(1.0)
        smoke = ((u - 0.66 + 1.25 * age).square() + (v + 0.52 + 0.36 * age).square()).sqrt() - (
            0.09 + 0.17 * age
        )
        b.fill(smoke * 0.35, b.rgb(0.93, 0.93, 0.95), 0.62 * (1 - age) * smooth(0.0, 0.12, age))
    b.body(box(u + 0.54, v - 0.03, 0.44, 0.27, 0.05), b.paint * 0.9, 1.12 - 0.5 * v)
    b.fill(box(u + 0.54, v + 0.25, 0.47, 0.045, 0.04), b.ink * 0.9 + 0.06)
    p = (u + 0.54 + 0.14).remainder(0.28) - 0.14
    b.fill(torch.maximum(box(p, v + 0.03, 0.085, 0.095, 0.03), (u + 0.54).abs() - 0.40), b.rgb(*LAMP))
    b.fill(box(u + 0.05, v - 0.22, 0.10, 0.03), b.rgb(*INK))
    b.body(box(u - 0.50, v - 0.06, 0.42, 0.19, 0.10), b.paint, 1.15 - 1.3 * v)
    b.fill(
        torch.maximum(box(u - 0.50, v - 0.06, 0.42, 0.19, 0.10), ((u - 0.52).abs() - 0.12).abs() - 0.018),
        b.rgb(*LAMP),
        0.8,
    )
    b.body(box(u - 0.66, v + 0.26, 0.075, 0.17, 0.02), b.ink + 0.04)
    b.body(box(u - 0.17, v + 0.08, 0.17, 0.34, 0.03), b.paint * 0.85, 1.1 - 0.4 * v)
    b.fill(box(u - 0.17, v + 0.40, 0.22, 0.04, 0.03), b.ink * 0.9 + 0.06)
    b.fill(box(u - 0.19, v + 0.18, 0.09, 0.10, 0.02), b.rgb(*LAMP))
    b.fill(polygon(u, v, (0.90, 0.20), (1.04, 0.42), (0.82, 0.42)), b.rgb(0.30, 0.28, 0.32))
    for middle, radius in ((-0.82, 0.105), (-0.27, 0.105), (0.17, 0.15), (0.50, 0.12), (0.76, 0.12)):
        wheel = circle(u - middle, v - 0.42 + radius, radius)
        b.fill(wheel, b.rgb(0.16, 0.15, 0.18))
        b.fill((wheel + 0.05).abs() - 0.016, b.rgb(0.75, 0.72, 0.66), 0.9)


def whale(b: Brush, u: Tensor, v: Tensor) -> None:
    """A whale: big head, pale belly, flukes that beat, a spout."""
    beat = torch.sin(b.time * 2.2)
    w = v + 0.16 * beat * (-0.2 - u).clamp(min=0)
    for side in (-1, 1):
        p, q = turn(u + 0.86, w + 0.22, 0.75 * side - 0.25)
        b.body(ellipse(p, q + 0.16, 0.11, 0.27), b.paint * 0.9)
    stem = torch.maximum(polygon(u, w, (-0.92, -0.22), (0.0, -0.36), (0.0, 0.38), (-0.5, 0.12)), -u - 0.95)
    body = torch.minimum(ellipse(u - 0.26, w, 0.68, 0.43), stem)
    b.body(body, b.paint, round_light(0.3 * u, 1.5 * w, 0.36))
    belly = torch.maximum(body, -(w - 0.13 + 0.12 * (u - 0.3).square()))
    b.fill(belly, b.paint * 0.25 + 0.70, 0.9, 0.95 + 0.08 * torch.sin(w * 60))
    p, q = turn(u - 0.14, w - 0.34, 0.75)
    b.body(ellipse(p, q - 0.08, 0.12, 0.27), b.paint * 0.82)
    b.fill(circle(u - 0.66, w - 0.02, 0.05), b.rgb(*INK))
    b.fill(circle(u - 0.675, w + 0.0, 0.018), b.rgb(1, 1, 1))
    arch = 0.105 + 0.015 * torch.sin(b.time * 3)
    jets = ((((u - 0.36).abs() - arch).square() + (v + 0.70).square()).sqrt() - arch).abs() - 0.03
    b.fill(torch.maximum(jets, v + 0.66), b.rgb(0.90, 0.97, 1.0), 0.85)
    b.fill(segment(u, v, (0.36, -0.46), (0.36, -0.70), 0.03), b.rgb(0.90, 0.97, 1.0), 0.85)


def plane(b: Brush, u: Tensor, v: Tensor) -> None:
    """A paper plane seen from the side and above: two wings and the fold between them."""
    b.body(polygon(u, v, (1.0, -0.12), (-0.28, 0.62), (-0.40, 0.12)), b.paint * 0.50)
    b.body(polygon(u, v, (1.0, -0.12), (-0.40, 0.14), (-0.96, -0.52)), b.paint, 1.12 + 0.25 * (v + 0.3))
    b.body(polygon(u, v, (1.0, -0.12), (-0.72, 0.54), (-0.46, 0.10)), b.paint * 0.78)
    b.fill(segment(u, v, (0.98, -0.12), (-0.44, 0.12), 0.014), b.paint * 0.3 + 0.68, 0.8)
    for tail in (-0.1, 0.34):
        fade = smooth(-1.8, -0.8, u) * (u < -0.78)
        b.fill((v - tail - 0.03 * torch.sin(u * 9 + 5 * b.time)).abs() - 0.02, b.rgb(1, 1, 1), fade * 0.4)


def jellyfish(b: Brush, u: Tensor, v: Tensor) -> None:
    """A pulsing bell with wavy arms, glowing a little."""
    pulse = 1 + 0.09 * torch.sin(b.time * 3.2)
    p = u / pulse
    q = v * pulse
    rim = 0.05 * torch.cos(p * 15)
    bell = torch.maximum(ellipse(p, q + 0.20, 0.72, 0.72), q + 0.08 + rim)
    b.glow(bell, b.paint, 0.26, 0.4)
    for arm in (-0.48, -0.24, 0.0, 0.24, 0.48):
        wave = arm * (1 + 0.12 * (v > 0) * v) + 0.075 * torch.sin(v * 6.5 - 3.4 * b.time + arm * 9)
        thick = 0.062 - 0.034 * (v + 0.1).clamp(0, 1)
        length = 0.96 - 0.5 * abs(arm)
        b.fill(
            torch.maximum((u - wave).abs() - thick, torch.maximum(v - length, -0.15 - v)),
            b.paint * 0.72 + 0.16,
            0.88,
        )
    b.body(bell, b.paint, round_light(p, q + 0.4, 0.5) * 1.03)
    b.fill(torch.maximum(ellipse(p + 0.22, q + 0.52, 0.22, 0.13), bell + 0.05), b.rgb(1, 1, 1), 0.5)
    for spot in (-0.34, 0.0, 0.34):
        b.fill(circle(p - spot, q + 0.28, 0.07), b.paint * 0.35 + 0.6, 0.7)


def umbrella(b: Brush, u: Tensor, v: Tensor) -> None:
    """An open umbrella with scallops and a crook."""
    b.fill(segment(u, v, (0.0, -0.75), (0.0, 0.72), 0.036), b.rgb(*WOOD))
    hook = torch.maximum((circle(u - 0.14, v - 0.72, 0.14)).abs() - 0.036, 0.72 - v)
    b.fill(hook, b.rgb(*WOOD))
    w = (u.abs() / 0.92).clamp(max=1.1)
    scallop = 0.10 * torch.cos(u / 0.92 * 3.1416 * 2.0).abs()
    dome = torch.maximum(ellipse(u, v - 0.02, 0.95, 0.88), v - 0.06 + scallop)
    ribs = torch.sin(u / (1.04 - (v - 0.02).square().clamp(max=0.95)).sqrt() * 6.6)
    b.body(
        dome, b.paint, round_light(u, v + 0.4, 0.34) * (0.88 + 0.16 * smooth(-0.15, 0.15, ribs)) - 0.05 * w
    )
    b.fill(segment(u, v, (0.0, -0.98), (0.0, -0.84), 0.035), b.rgb(*INK))


Draw = Callable[[Brush, Tensor, Tensor], None]
DRAW: dict[str, Draw] = {
    "balloon": balloon,
    "boat": boat,
    "bird": bird,
    "fish": fish,
    "lantern": lantern,
    "kite": kite,
    "comet": comet,
    "train": train,
    "whale": whale,
    "plane": plane,
    "jellyfish": jellyfish,
    "umbrella": umbrella,
}
PAINTS: dict[str, tuple[float, float, float]] = {
    "red": (0.88, 0.13, 0.15),
    "orange": (0.98, 0.50, 0.06),
    "yellow": (1.00, 0.86, 0.12),
    "green": (0.14, 0.70, 0.28),
    "blue": (0.10, 0.36, 0.94),
    "purple": (0.52, 0.18, 0.80),
    "pink": (1.00, 0.48, 0.72),
    "white": (0.97, 0.97, 0.96),
}
