"""The page: one file of HTML with its styles, its script, its drawings and its tables, and nothing to fetch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .. import __version__
from ..words import amount, clock, count, share
from .chart import Figure
from .draw import draw
from .read import Book, Told
from .sums import SPLITS, Sums
from .svg import svg
from .table import Table, shown

HERE = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
Parts = Sequence[tuple[Sums, Sequence[Figure]]]


def page(book: Book, parts: Parts) -> str:
    """The whole page."""
    title = f"{book.title}: FedQuilt report"
    body = [_head(book), *(_section(i, s, figures, book) for i, (s, figures) in enumerate(parts)), _settings(book.runs)]
    style, script = ((HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="FedQuilt {__version__}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the figures</a>
{_nav(parts)}
<main id="main">
{"".join(body)}
</main>
<div id="tip" role="status" hidden></div>
<script>
{script}</script>
</body>
</html>
"""


def _head(book: Book) -> str:
    runs = book.runs
    done = sum(t.finished for t in runs)
    missing = sum(s.missing for s in book.sections)
    first = runs[0]
    facts = [
        ("data", ", ".join(dict.fromkeys(t.data for t in runs))),
        ("partition", ", ".join(dict.fromkeys(str(t.settings["partition"]) for t in runs))),
        ("clients", ", ".join(dict.fromkeys(str(t.settings["clients"]) for t in runs))),
        ("rounds", ", ".join(dict.fromkeys(str(t.settings["rounds"]) for t in runs))),
        ("model", ", ".join(dict.fromkeys(str(t.record["model"]["name"]) for t in runs))),
        ("fleet", ", ".join(dict.fromkeys(str(t.settings["fleet"]) for t in runs))),
        ("seeds", ", ".join(dict.fromkeys(str(t.seed) for t in runs))),
        ("runs", f"{done} finished" + (f", {missing} not" if missing else "")),
    ]
    said = "".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    notes = [f"Note: {n}." for n in book.notices]
    if missing:
        notes.append(
            f"{count(missing, 'run')} of this report {'is' if missing == 1 else 'are'} not finished: curves show what "
            "there is; final figures are of finished runs where there are any."
        )
    if book.trials is not None:
        notes.append(f"A search: all scores are on {SPLITS[book.split]} data, and none looks at any other.")
    if any(t.record["data"]["test doubles as validation"] for t in runs):
        notes.append("The test part doubles as validation: what is picked on it is not held out.")
    told = "".join(f'<p class="note">{escape(n)}</p>' for n in notes)
    version = first.record["versions"]["fedquilt"]
    return (
        f'<header><p class="brand">FedQuilt {escape(version)}</p><h1>{escape(book.title)}</h1>'
        f'<dl class="facts">{said}</dl>{told}</header>'
    )


def _nav(parts: Parts) -> str:
    items = []
    for i, (s, figures) in enumerate(parts):
        if len(parts) > 1:
            items.append(f'<a class="of" href="#s{i}">{escape(s.section.title)}</a>')
        items += [f'<a href="#s{i}-{f.name}">{escape(f.title)}</a>' for f in figures]
    items.append('<a href="#settings">Settings</a>')
    short = ' class="short"' if len(parts) == 1 else ""
    return f'<nav{short} aria-label="Figures">{"".join(items)}</nav>'


def _section(i: int, s: Sums, figures: Sequence[Figure], book: Book) -> str:
    cards = "".join(_figure(f"s{i}-{f.name}", f) for f in figures)
    tiles = "" if book.trials is not None else _tiles(s)
    return f'<section id="s{i}" data-section><h2>{escape(s.section.title)}</h2>{tiles}{cards}</section>'


def _tiles(s: Sums) -> str:
    """The final figures at a glance."""
    if s.cell is None:
        return ""
    columns = ["mean [95 %]", "spread", "worst tenth", "bytes", "compute", "energy", "time"]
    if s.cell["local"] and len(s.cell["rows"]) > 1:
        columns.append("beats local for")
    head = "".join(f'<th scope="col">{c}</th>' for c in columns)
    best = max(s.cell["rows"], key=lambda r: -r["mean"] if s.lower else r["mean"])
    rows = "".join(_tile(r, r is best, s, len(columns) > 7) for r in s.cell["rows"])
    metric = f"{s.metric} on {SPLITS[s.split]}"
    return (
        f'<div class="wide"><table class="glance"><thead><tr><th scope="col">{escape(metric)}</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _tile(r: Mapping[str, Any], best: bool, s: Sums, beside: bool) -> str:
    from ..cells import against

    low, high = r["interval"]
    said = [f"<b>{share(r['mean'])}</b> <small>[{share(low)}, {share(high)}]</small>", share(r["spread_clients"])]
    said += [share(r["worst_decile"]), amount(r["down"] + r["up"], "B"), amount(r["flops"], "FLOP")]
    said += [amount(r["joules"], "J"), clock(r["seconds"])]
    if beside:
        pair = against(s.cell or {}, r["label"], (s.cell or {})["local"])
        said.append("–" if pair is None else f"{pair['better']:.0%}")
    cells = "".join(f"<td>{v}</td>" for v in said)
    mark = ' class="best"' if best else ""
    return f'<tr{mark}><th scope="row">{escape(r["label"])}</th>{cells}</tr>'


# ---- a figure
def _figure(name: str, f: Figure) -> str:
    xs, ys = (list(dict.fromkeys(view[k] for view in f.views)) for k in (0, 1))
    bars = _choice(name, "x", "against", xs) + _choice(name, "y", "show", ys)
    plots = []
    for n, ((x, y), chart) in enumerate(f.views.items()):
        words = ", ".join(w for w in (y, x) if w)
        title = f"{f.title}: {words}" if words else f.title
        drawing = svg(draw(chart, f.series), title, str(f.caption), f"{name}-{n}")
        hidden = " hidden" if n else ""
        plots.append(f'<div class="plot" data-x="{escape(x)}" data-y="{escape(y)}"{hidden}>{drawing}</div>')
    caption = " ".join(f"<b>{k}:</b> {escape(v)}." for k, v in f.caption.said.items())
    note = f" {escape(f.caption.note)}" if f.caption.note else ""
    return (
        f'<figure id="{name}"><h3>{escape(f.title)}</h3>'
        f'<button type="button" class="save" data-name="{name}">Save SVG</button><div class="bars">{bars}</div>'
        f"{''.join(plots)}<figcaption>{caption}{note}</figcaption>{_table(name, f.table)}</figure>"
    )


def _choice(name: str, axis: str, word: str, choices: Sequence[str]) -> str:
    if len(choices) < 2:
        return ""
    made = "".join(
        f'<button type="button" data-{axis}="{escape(c)}" aria-pressed="{str(i == 0).lower()}">{escape(c)}</button>'
        for i, c in enumerate(choices)
    )
    return f'<div class="choice" role="group" aria-label="{word}"><span>{word}</span>{made}</div>'


def _table(name: str, table: Table) -> str:
    kinds = [c.kind for c in table.columns]
    head = "".join(f'<th scope="col"{_side(c.kind)}>{escape(c.name)}</th>' for c in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td{_side(k)}>{escape(shown(v, k))}</td>" for v, k in zip(row, kinds, strict=True)) + "</tr>"
        for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<details class="table"><summary>Table</summary><div class="tools">'
        f'<button type="button" class="copy" data-of="{name}-text">Copy</button><span aria-live="polite"></span></div>'
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}'
        f'<details><summary>Plain text</summary><pre id="{name}-text" tabindex="0">{escape(table.plain())}</pre>'
        f"</details></details>"
    )


def _side(kind: str) -> str:
    return "" if kind == "text" else ' class="n"'


# ---- how it was made
def _settings(runs: Sequence[Told]) -> str:
    made = "".join(_run(t) for t in runs)
    return f'<section id="settings"><h2>How it was made</h2>{made}</section>'


def _run(t: Told) -> str:
    commit = t.record.get("commit") or {}
    facts = {f"setting {k}": v for k, v in t.settings.items() if k not in ("method", "seed") and v not in ("", None)}
    said = {
        "method": re.sub(r"(\w+=[A-Z]\w*\()", r"\n    \1", str(t.record["method"])),
        "seed": t.seed,
        **facts,
        **{f"version {k}": v for k, v in t.record["versions"].items()},
        **{f"machine {k}": v for k, v in t.record["machine"].items()},
        "commit": f"{commit['name']}{', with changes' if commit['changed'] else ''}" if commit else "not known",
        "data fingerprint": t.record["data"]["fingerprint"],
        "parameters": f"{t.record['model']['parameters']:,}",
    }
    rows = "".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape(str(v))}</td></tr>' for k, v in said.items())
    state = "" if t.finished else f" (not finished: {t.rounds} of {t.settings['rounds']} rounds)"
    name = f"{t.label or t.method['name']}, {t.data}, {t.settings['partition']}, seed {t.seed}{state}"
    return (
        f'<details class="run"><summary>{escape(name)}</summary>'
        f'<div class="wide"><table class="facts"><tbody>{rows}</tbody></table></div></details>'
    )
