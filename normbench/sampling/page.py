"""A page of classified images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from normbench.sampling.classes import Classified

Pixels = UInt8[np.ndarray, "channels height width"]

COLUMNS = 10
SIDE = 104  # pixels of an image on the page, about
GAP = 10
LINE = 14  # height of a line of text
WRONG, RIGHT, INK = (200, 30, 30), (120, 120, 120), (20, 20, 20)


def draw_page(
    title: str, examples: Sequence[Classified], images: Sequence[Pixels], classes: Sequence[str]
) -> Image.Image:
    """Images in rows, each with its class and what was predicted of it; mistakes have a red frame and red words."""
    columns = min(COLUMNS, len(examples))
    scale = max(1, SIDE // max(images[0].shape[1:]))
    height, width = (scale * side for side in images[0].shape[1:])
    cell_width, cell_height = max(width, SIDE) + GAP, height + 2 * LINE + GAP
    rows = -(-len(examples) // columns)
    heading = ImageFont.load_default(LINE + 2)
    page_width = max(columns * cell_width + GAP, round(heading.getlength(title)) + 2 * GAP)
    page = Image.new("RGB", (page_width, rows * cell_height + 3 * LINE + GAP), "white")
    pen = ImageDraw.Draw(page)
    pen.text((GAP, GAP), title, INK, heading)
    for place, (example, pixels) in enumerate(zip(examples, images, strict=True)):
        row, column = divmod(place, columns)
        corner = GAP + column * cell_width, 3 * LINE + row * cell_height
        page.paste(picture(pixels, scale), corner)
        label(pen, example, classes, corner, (width, height), cell_width - GAP)
    return page


def picture(pixels: Pixels, scale: int) -> Image.Image:
    """One image, each pixel `scale` pixels wide and high."""
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    return image.convert("RGB").resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)


def label(
    pen: ImageDraw.ImageDraw,
    example: Classified,
    classes: Sequence[str],
    corner: tuple[int, int],
    size: tuple[int, int],
    room: int,
) -> None:
    """The frame of a mistake, and two lines below the image."""
    (left, top), (width, height) = corner, size
    if example.wrong:
        pen.rectangle((left - 3, top - 3, left + width + 2, top + height + 2), outline=WRONG, width=3)
    guess = f"{classes[example.predicted]} ({example.probability:.0%})"
    lines = [f"is {classes[example.label]}", f"seen as {guess}"] if example.wrong else [guess]
    font = ImageFont.load_default(LINE - 3)
    for number, line in enumerate(lines):
        place = left, top + height + 3 + number * LINE
        pen.text(place, shortened(line, font, room), WRONG if example.wrong else RIGHT, font)


def shortened(line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: int) -> str:
    """A line cut to the room that it has."""
    if font.getlength(line) <= room:
        return line
    while line and font.getlength(f"{line}…") > room:
        line = line[:-1]
    return f"{line}…"
