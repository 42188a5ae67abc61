"""``theodolite heatmap``: where on a page each word of a query finds its match."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from theodolite.errors import printable
from theodolite.limits import EMBED_BATCH
from theodolite_cli import options

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from theodolite.embedder import Embedder
    from theodolite.values import Row

LARGE, SMALL = 1000, 220
"""Longest edge of the summed panel and of a token's, in pixels."""
MARGIN, LABEL = 12, 25
COLOURS = ((20, 24, 70), (90, 30, 120), (190, 50, 90), (245, 125, 40), (255, 235, 120))
"""From no match to the best one; growing in lightness, so that it reads in grey and by the colour-blind."""
EPILOG = """\
The large panel sums the similarity of every query token to each patch of the
page, the small ones show each token of the text alone, all on one scale, with
its best patch framed. Needs a late-interaction model that takes images.

example:
  theodolite heatmap -m models/colqwen2.5-v0.2-merged -q "total revenue" \\
      --image page.png -o why.png
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "heatmap",
        help="draw where a page matches a query",
        description="Draw the late-interaction similarity of each patch of a page to a query.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser, None)
    group = parser.add_argument_group("inputs")
    group.add_argument("-q", "--query", required=True, metavar="TEXT", help="the search query")
    group.add_argument("--image", required=True, metavar="FILE", help="the page")
    group.add_argument("-o", "--output", required=True, metavar="FILE", help="the picture to write (.png, .jpg, .webp)")
    options.add_running(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Load, embed both, draw."""
    from theodolite.errors import RequestError

    if not args.query.strip():
        raise RequestError("--query is empty")
    options.check_file("--image", args.image)
    output = Path(args.output)
    if output.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise RequestError(f"--output {output}: a name that ends in .png, .jpg or .webp was expected")
    if not output.parent.is_dir():
        raise RequestError(f"--output {output}: no such folder")

    import theodolite
    from theodolite.errors import Unsupported
    from theodolite.values import TextItem

    embedder = theodolite.load(args.model, **options.loading(args))
    refusal = Unsupported(
        f"{embedder.label} (family {embedder.profile.family!r}) gives no vector per patch of a page; a "
        "late-interaction model that takes images is needed, such as ColQwen2.5 or ColIdefics3"
    )
    if not embedder.multi_vector or not embedder.profile.images:
        raise refusal
    page = options.image(args.image)
    query_row, page_row = embedder.encode([TextItem(args.query), page])
    if not hasattr(page_row.image, "cells"):
        raise refusal
    options.report_cut(query_row.truncated + page_row.truncated, embedder.max_length)
    similarity = similarities(embedder, query_row, page_row)
    names = [_name(embedder, i) for i in query_row.input_ids]
    score = float(similarity.reshape(len(similarity), -1).max(axis=1).sum())
    sheet(page.image, similarity, names, f"{args.query} - best patches sum to {score:.3f}").save(output)
    _, rows, columns = similarity.shape
    print(f"{printable(str(output))}: {len(names)} query tokens, {rows} x {columns} patches, MaxSim {score:.4f}")


def similarities(embedder: Embedder, query: Row, page: Row) -> np.ndarray:
    """Cosine of every query token and every patch of the page, laid out as the page is: ``[Lq, R, C]``."""
    import numpy as np

    cells: np.ndarray = page.image.cells
    tokens, patches = embedder.finish([query, page], embedder.run([query, page], EMBED_BATCH), embd_normalize=2).vectors
    together: np.ndarray = np.einsum("qk,rck->qrc", tokens, patches[cells])
    return together


def _name(embedder: Embedder, token_id: int) -> str | None:
    """How a token of the text reads; None for a special token."""
    text: str = embedder.tokenizer.backend.decode([token_id], skip_special_tokens=True)
    return text.strip() or None


def sheet(page: Image, similarity: np.ndarray, names: list[str | None], title: str) -> Image:
    """The summed panel, and to its right one panel per token that has a name, column by column."""
    from PIL import Image, ImageDraw, ImageFont

    large, small = _scaled(page, LARGE), _scaled(page, SMALL)
    shown = [(name, heat) for name, heat in zip(names, similarity, strict=True) if name]
    step_x, step_y = small.width + MARGIN, small.height + LABEL
    down = max(1, large.height // step_y)
    width = 2 * MARGIN + large.width + -(-len(shown) // down) * step_x
    canvas = Image.new("RGB", (width, 2 * MARGIN + LABEL + max(large.height, step_y)), "white")
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(15)
    pen.text((MARGIN, MARGIN), _short(title, (width - 2 * MARGIN) // 9), "black", font)
    summed = similarity.sum(axis=0)
    canvas.paste(overlay(large, summed, summed.min(), summed.max()), (MARGIN, MARGIN + LABEL))
    least, most = similarity.min(), similarity.max()
    for i, (name, heat) in enumerate(shown):
        x, y = 2 * MARGIN + large.width + i // down * step_x, MARGIN + LABEL + i % down * step_y
        pen.text((x, y), _short(f"{name}  {heat.max():.2f}", small.width // 8), "black", font)
        canvas.paste(overlay(small, heat, least, most, best=True), (x, y + LABEL))
    return canvas


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: max(1, most - 3)] + "..."


def _scaled(page: Image, edge: int) -> Image:
    share = edge / max(page.size)
    return page.resize((max(1, round(page.width * share)), max(1, round(page.height * share))))


def overlay(page: Image, heat: np.ndarray, least: float, most: float, *, best: bool = False) -> Image:
    """A page in grey under the colours of its patches ``[R, C]``: the better the match, the less grey shows.

    :param best: frame the best patch.
    """
    import numpy as np
    from PIL import Image, ImageDraw

    share = np.clip((heat - least) / max(most - least, 1e-9), 0, 1)  # [R, C]
    stops = np.linspace(0, 1, len(COLOURS))
    colour = np.stack([np.interp(share, stops, channel) for channel in np.array(COLOURS).T], axis=-1)
    cover = 0.1 + 0.5 * share
    tint = Image.fromarray(np.round(colour).astype(np.uint8)).resize(page.size, Image.Resampling.NEAREST)
    mask = Image.fromarray(np.round(255 * cover).astype(np.uint8)).resize(page.size, Image.Resampling.NEAREST)
    made = Image.composite(tint, page.convert("L").convert("RGB"), mask)
    if best:
        row, column = np.unravel_index(int(heat.argmax()), heat.shape)
        high, wide = page.height / heat.shape[0], page.width / heat.shape[1]
        box = (column * wide, row * high, (column + 1) * wide - 1, (row + 1) * high - 1)
        ImageDraw.Draw(made).rectangle(box, outline=(0, 255, 200), width=2)
    return made
