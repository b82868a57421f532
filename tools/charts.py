#!/usr/bin/env python3
"""The charts of a report.html as SVG files that stand alone, for pages in docs/.

    python3 tools/charts.py out/quality/report.html docs/quality --only "Points lost" --only "headlines"

writes CASE-TITLE.svg into the folder for every chart, or for those whose title has one of the texts in it.
"""
import argparse
import html
import pathlib
import re
import sys

WIDTH, LINE, EACH, LEFT = 620, 22, 9, 34  # of legends: pixels a letter, and before a text

STYLE = """<style>
text{font:13px system-ui,"Segoe UI",Roboto,"Liberation Sans",sans-serif;fill:#1c2024}text.v{fill:#5d666f;font-size:12px}
text.t{font-weight:600;font-size:14px}
.g{stroke:#d9dee3}.a{stroke:#5d666f;stroke-width:1.2}.m{fill:currentColor}
.l{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}.d{stroke-dasharray:7 4}
.c0{color:#0072b2}.c1{color:#d55e00}.c2{color:#009e73}.c3{color:#b0578d}
.c4{color:#b98200}.c5{color:#3a9bd6}.c6{color:#555b61}.c7{color:#7a4b1e}
</style>"""


def text_of(markup):
    return html.unescape(re.sub(r"<[^>]*>", "", markup)).strip()


def alone(case, figure):
    """The title of a <figure> of `case`, and the SVG of its caption, legend and chart."""
    title = text_of(re.search(r"<figcaption>(.*?)</figcaption>", figure, re.S)[1])
    chart = re.search(r'<svg class="chart" viewBox="0 0 (\d+) (\d+)"[^>]*>(.*?)</svg>', figure, re.S)
    width, height, inner = int(chart[1]), int(chart[2]), chart[3]
    legend = figure[:chart.start()]
    entries = re.findall(r"<span><svg[^>]*>(.*?)</svg>(.*?)</span>", legend, re.S)
    heading = [f"{case}: {title}"] if EACH * len(f"{case}: {title}") < WIDTH else [f"{case}:", title]
    rows = [f'<text class="t" x="8" y="{18 + LINE * i}">{html.escape(line)}</text>' for i, line in enumerate(heading)]
    x, y = 8, LINE * len(heading) + 8
    for mark, name in entries:
        needs = LEFT + EACH * len(text_of(name))
        if x > 8 and x + needs > WIDTH:
            x, y = 8, y + LINE
        rows.append(f'<g transform="translate({x} {y})">{mark}</g>'
                    f'<text x="{x + LEFT}" y="{y + 11}">{html.escape(text_of(name))}</text>')
        x += needs
    top = y + LINE + 4 if entries else y
    return title, "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + height}" width="{width}" '
        f'height="{top + height}">', STYLE, '<rect width="100%" height="100%" fill="#fff"/>', *rows,
        f'<g transform="translate(0 {top})">{inner}</g>', "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", action="append", default=[], help="a text in the title; may be given several times")
    arguments = parser.parse_args()
    try:
        with open(arguments.report, encoding="utf-8") as f:
            report = f.read()
    except OSError as error:
        sys.exit(f"{arguments.report}: {error.strerror}; it is the report.html of a run")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for section in report.split("<section ")[1:]:
        case = text_of(re.search(r"<h2>.*?</span><span>(.*?)</span>", section, re.S)[1])
        for figure in re.findall(r"<figure>.*?</figure>", section, re.S):
            title, svg = alone(case, figure)
            if arguments.only and not any(text in title for text in arguments.only):
                continue
            name = re.sub(r"[^a-z0-9.]+", "-", f"{case} {title}".lower()).strip("-")
            (arguments.folder / f"{name}.svg").write_text(svg, encoding="utf-8")
            written += 1
    print(f"{arguments.folder}: {written} charts")
    if not written:
        sys.exit("no chart has such a title")


if __name__ == "__main__":
    main()
