"""How far apart colours are, as people see them: CIEDE2000, contrast, and simulated colour blindness."""

from __future__ import annotations

import numpy as np

# What is left of linear RGB without one kind of cone: Machado, Oliveira and Fernandes 2009, table 1, severity 1.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def linear(color: str) -> np.ndarray:
    """`#rrggbb` as linear RGB (3,)."""
    value = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """Of two colours, from 1 to 21 (WCAG 2)."""
    dark, light = sorted(float(linear(color) @ TO_XYZ[1]) for color in (first, second))
    return (light + 0.05) / (dark + 0.05)


def lab(color: str, blindness: str) -> np.ndarray:
    """CIELAB (3,) of a colour as people with a colour blindness see it."""
    xyz = TO_XYZ @ np.clip(np.array(BLINDNESS[blindness]) @ linear(color), 0, 1) / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(first: str, second: str, blindness: str = "none") -> float:
    """CIEDE2000 (Sharma, Wu and Dalal 2005)."""
    (l1, a1, b1), (l2, a2, b2) = lab(first, blindness), lab(second, blindness)
    mean_c = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(mean_c**7 / (mean_c**7 + 25**7)))
    a1, a2 = a1 * (1 + g), a2 * (1 + g)
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1)) % 360, np.degrees(np.arctan2(b2, a2)) % 360
    apart = (h2 - h1 + 180) % 360 - 180
    h, lightness, c = np.radians(h1 + apart / 2), (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * np.cos(h - np.radians(30)) + 0.24 * np.cos(2 * h)
    t += 0.32 * np.cos(3 * h + np.radians(6)) - 0.2 * np.cos(4 * h - np.radians(63))
    s_l = 1 + 0.015 * (lightness - 50) ** 2 / np.sqrt(20 + (lightness - 50) ** 2)
    s_c, s_h = 1 + 0.045 * c, 1 + 0.015 * c * t
    turn = np.radians(60 * np.exp(-((((np.degrees(h) % 360) - 275) / 25) ** 2)))
    r_t = -2 * np.sqrt(c**7 / (c**7 + 25**7)) * np.sin(turn)
    d_l, d_c = (l2 - l1) / s_l, (c2 - c1) / s_c
    d_h = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(apart) / 2) / s_h
    return float(np.sqrt(d_l**2 + d_c**2 + d_h**2 + r_t * d_c * d_h))
