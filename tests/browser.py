#!/usr/bin/env python3
"""Opens HTML reports in a headless Chromium and checks what a reader would meet.

    pip install playwright        # the package alone: the browser is the system's
    apt-get install chromium      # or chromium-headless-shell
    python3 tests/browser.py [REPORT.html ...]

Without arguments: all reports below docs/examples. Checked, at widths of a telephone and of a desk, in light and in dark:
nothing is loaded but the file itself, no message of an error, every plot is drawn, the page is no wider than the window, and
text stands out from its background (WCAG AA, 4.5:1). OASIS_BROWSER names another browser. A machine without one prints
SKIPPED; OASIS_REQUIRE_BROWSER=1 makes that a failure.
"""

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
WIDTHS = [400, 1200]
CONTRAST = 4.5

OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  const inside = e => e.parentElement.closest('.wide, pre');
  return [...document.body.querySelectorAll('*')]
    .filter(e => e.getBoundingClientRect().right > width + 0.5 && !inside(e))
    .map(e => `${e.tagName} reaches ${Math.round(e.getBoundingClientRect().right)} px of ${width}`);
}"""

PLOTS = """() => [...document.querySelectorAll('figure')].map(figure => {
  const drawn = figure.querySelector('svg, img');
  const box = drawn ? drawn.getBoundingClientRect() : { width: 0, height: 0 };
  const marks = drawn instanceof SVGElement ? drawn.querySelectorAll('path, rect, circle, polygon, polyline, line').length : 0;
  const loaded = drawn instanceof SVGElement ? marks > 1 : Boolean(drawn && drawn.complete && drawn.naturalWidth);
  return { name: figure.innerText.slice(0, 40), width: box.width, height: box.height, loaded };
})"""

# Every text outside drawings, with its colour and the colour behind it; drawings bring their own paper.
TEXTS = """() => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = new Map();
  for (let node; (node = walk.nextNode());) {
    const own = node.parentElement;
    if (!node.data.trim() || own.closest('svg, script, style')) continue;
    let back = own;
    while (back && getComputedStyle(back).backgroundColor === 'rgba(0, 0, 0, 0)') back = back.parentElement;
    const colours = [getComputedStyle(own).color, back ? getComputedStyle(back).backgroundColor : 'rgb(255, 255, 255)'];
    found.set(colours.join(), [...colours, node.data.trim().slice(0, 30)]);
  }
  return [...found.values()];
}"""


def luminance(colour):
    channels = [float(c) / 255 for c in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    light, dark = sorted([luminance(a), luminance(b)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def check_look(page, scheme, faults):
    """Overflow, plots and contrast of the page as it stands."""
    faults += page.evaluate(OVERFLOW)
    for plot in page.evaluate(PLOTS):
        if not plot["loaded"] or min(plot["width"], plot["height"]) < 50:
            faults.append(f"plot not drawn: {plot}")
    texts = page.evaluate(TEXTS)
    if not texts:
        faults.append("the page has no text")
    for ink, paper, text in texts:
        if contrast(ink, paper) < CONTRAST:
            faults.append(f"contrast {contrast(ink, paper):.1f} of {ink} on {paper}: {text!r}")
        if (luminance(paper) < 0.2) != (scheme == "dark"):
            faults.append(f"paper {paper} in the {scheme} scheme: {text!r}")


def check(browser, report):
    """What is wrong with a report."""
    faults, plots = [], len(list((report.parent / "plots").glob("*.svg")))
    for width in WIDTHS:
        for scheme in ["light", "dark"]:
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            here, own = [], report.as_uri()
            page.on("request", lambda r: r.url == own or here.append(f"loads {r.url}"))
            page.on("console", lambda m: m.type in ("error", "warning") and here.append(f"console: {m.text}"))
            page.on("pageerror", lambda e: here.append(f"script: {e}"))
            page.goto(own, wait_until="networkidle")
            if plots != page.locator("figure").count():
                here.append(f"{page.locator('figure').count()} figures, and plots/ has {plots}")
            check_look(page, scheme, here)
            page.close()
            faults += [f"{width} px, {scheme}: {fault}" for fault in dict.fromkeys(here)]
    return faults


def skipped(why):
    required = os.environ.get("OASIS_REQUIRE_BROWSER") == "1"
    print(f"SKIPPED browser: {why}\n0 reports checked, 1 check skipped")
    return 1 if required else 0


def main():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return skipped("python3 can't import playwright (pip install playwright)")
    named = os.environ.get("OASIS_BROWSER")
    program = next(filter(None, map(shutil.which, [named] if named else BROWSERS)), None)
    if program is None:
        return skipped(f"none of {', '.join([named] if named else BROWSERS)} is installed")
    reports = [Path(p).resolve() for p in sys.argv[1:]] or sorted(ROOT.glob("docs/examples/**/report.html"))
    broken = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for report in reports:
            faults = check(browser, report)
            broken += bool(faults)
            print(f"{'FAILED' if faults else 'ok'} {report}", *faults, sep="\n  ")
        browser.close()
    print(f"{len(reports)} reports checked, {broken} failed, 0 checks skipped")
    return 1 if broken or not reports else 0


if __name__ == "__main__":
    sys.exit(main())
