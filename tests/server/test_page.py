"""The page at / in a real browser: headless Chromium, as it is used."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
TEXTS = ["the cat sat on a mat", "rain falls over the hills", "the cat sat"]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = (390, 1024, 1280)
SECONDS = 20
CONTRAST = """
const parts = color => color.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const under = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
return [...document.querySelectorAll("td, th, label, p, h1, h2, form > button, a")].map(element => {
    const style = getComputedStyle(element), back = parts(style.backgroundColor), alpha = back[3] ?? 1;
    const mixed = under.map((u, i) => u * (1 - alpha) + back[i] * alpha);
    const [a, b] = [light(parts(style.color)), light(mixed)].sort((x, y) => y - x);
    return [(a + .05) / (b + .05), element.textContent];
});
"""


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in programs.items() if path is None]
    assert not missing, f"this test needs {' and '.join(missing)}: apt-get install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(programs["chromedriver"]))
    try:
        yield driver
    finally:
        driver.quit()


def look(driver: Any, width: int, dark: bool) -> None:
    """Show the page at a width, in light or dark."""
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)


def fill(driver: Any, name: str, text: str) -> None:
    element = driver.find_element("id", name)
    element.clear()
    element.send_keys(text)


def submit(driver: Any, form: str, result: str) -> list[list[str]]:
    """Press a form's button and read the cells of the table that comes."""
    from selenium.webdriver.support.wait import WebDriverWait

    driver.execute_script(f"document.getElementById('{result}').replaceChildren()")
    driver.find_element("css selector", f"#{form} > button").click()
    WebDriverWait(driver, SECONDS).until(
        lambda d: d.find_elements("css selector", f"#{result} tr, #{form}-error:not(:empty)")
    )
    assert driver.find_element("id", f"{form}-error").text == ""
    rows = driver.find_elements("css selector", f"#{result} tbody tr")
    return [[cell.text for cell in row.find_elements("css selector", "th, td")] for row in rows]


async def test_texts_and_documents(client: Any, tmp_path: Path) -> None:
    reply = await (await client.post("/v1/embeddings", json={"input": TEXTS})).json()
    vectors = np.array([row["embedding"] for row in reply["data"]])
    body = {"query": "where does the cat sit", "documents": TEXTS}
    ranked = (await (await client.post("/v1/rerank", json=body)).json())["results"]

    def use() -> None:
        with browser(tmp_path) as driver:
            driver.get(f"http://127.0.0.1:{client.port}/")
            fill(driver, "texts", "\n".join(TEXTS))
            matrix = submit(driver, "compare", "matrix")
            assert [row[0] for row in matrix] == [f"{i}. {text}" for i, text in enumerate(TEXTS, 1)]
            shown = np.array([[float(cell) for cell in row[1:]] for row in matrix])
            np.testing.assert_allclose(shown, vectors @ vectors.T, atol=1e-4)
            fill(driver, "query", body["query"])
            fill(driver, "documents", "\n".join(TEXTS))
            ranking = submit(driver, "rank", "ranking")
            assert [row[-1] for row in ranking] == [TEXTS[row["index"]] for row in ranked]
            assert [row[0] for row in ranking] == [f"{row['relevance_score']:.4f}" for row in ranked]
            for width in WIDTHS:
                for dark in (False, True):
                    look(driver, width, dark)
                    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
                    assert min(driver.execute_script(CONTRAST))[0] >= 4.5
            names = "return [...document.querySelectorAll('input, textarea')].filter(e => !e.labels.length).length"
            assert driver.execute_script(names) == 0
            assert [line for line in driver.get_log("browser") if line["level"] == "SEVERE"] == []

    await asyncio.to_thread(use)


async def test_an_error_is_shown(client: Any, tmp_path: Path) -> None:
    picture = tmp_path / "dot.png"
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    picture.write_bytes(base64.b64decode(dot))

    def use() -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        with browser(tmp_path / "profile") as driver:
            driver.get(f"http://127.0.0.1:{client.port}/")
            driver.find_element("id", "files").send_keys(str(picture))
            WebDriverWait(driver, SECONDS).until(
                lambda d: d.find_elements("css selector", "#pictures img[alt='dot.png']")
            )
            driver.find_element("css selector", "#compare > button").click()
            WebDriverWait(driver, SECONDS).until(lambda d: d.find_element("id", "compare-error").text)
            assert "does not accept images" in driver.find_element("id", "compare-error").text

    await asyncio.to_thread(use)
