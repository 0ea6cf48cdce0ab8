"""Draws a dashboard as Grafana would show it, without Grafana: each panel's own query, asked of the real servers.

python3 picture.py DASHBOARD POSTGRES_URL PROMETHEUS_URL FILE.svg

DASHBOARD is a file of dashboards/. The role of the URL is the dashboards' own; psql asks. Needs matplotlib (PyPI).
"""

import csv
import datetime
import io
import json
import subprocess
import sys
import urllib.parse
import urllib.request

import matplotlib
import matplotlib.dates
import matplotlib.patches
import matplotlib.pyplot as plt

from panels import expanded

UTC = datetime.timezone.utc
HOURS = {"now-1h": 1, "now-6h": 6, "now-24h": 24}
COLUMN, ROW = 0.62, 0.42  # inches of a grid's cell
PAGE, PANEL, INK, FAINT = "#f4f5f5", "white", "#24292e", "#8e9297"
COLORS = {"green": "#56a64b", "red": "#e02f44", "orange": "#ff9830", "yellow": "#f2cc0c", "blue": "#3274d9"}
UNITS = {"s": (("d", 86400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 0.001))}


def words(value, unit):
    """A value as Grafana writes it in this unit."""
    try:
        number = float(value)
    except ValueError:
        return value[:19].replace("T", " ") if value[:2] == "20" and ":" in value else value
    if unit == "percentunit":
        return f"{number:.1%}"
    if unit == "s" and number:
        name, size = next((pair for pair in UNITS["s"] if abs(number) >= pair[1]), UNITS["s"][-1])
        return f"{number / size:.3g} {name}"
    return f"{number:.12g}" if number == int(number) else f"{number:.3g}"


def rows(sql, url):
    """A table: the names of its columns, and its rows as text."""
    asked = subprocess.run(
        ["psql", url, "-X", "--csv", "-v", "ON_ERROR_STOP=1", "-c", "set time zone 'UTC'", "-c", expanded(sql)],
        check=True, capture_output=True, text=True)
    table = list(csv.reader(io.StringIO(asked.stdout.removeprefix("SET\n"))))
    return table[0], table[1:]


def prometheus(path, url, **fields):
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(fields)}", timeout=30) as answer:
        return json.load(answer)["data"]["result"]


def series_of(panel, sources, start, end):
    """Its lines: a name, and pairs of a time and a value."""
    for target in panel["targets"]:
        if "expr" in target:
            found = prometheus("query_range", sources["prometheus"], query=target["expr"], start=start.timestamp(),
                               end=end.timestamp(), step=15)
            for one in found:
                labels = {key: value for key, value in one["metric"].items() if key != "__name__"}
                name = target.get("legendFormat") or " ".join(labels.values()) or panel["title"]
                for key, value in labels.items():
                    name = name.replace("{{" + key + "}}", value).replace("{{ " + key + " }}", value)
                yield name, [(datetime.datetime.fromtimestamp(at, UTC), float(value)) for at, value in one["values"]]
            continue
        columns, table = rows(target["rawSql"], sources["postgres"])
        split = columns[1] == "metric"
        lines = {}
        for row in table:
            for column in range(2 if split else 1, len(columns)):
                name = " ".join(([row[1]] if split else []) + [columns[column]])
                if row[column]:
                    at = datetime.datetime.fromisoformat(row[0] if row[0][-3] in "+:" else row[0] + ":00")
                    lines.setdefault(name, []).append((at, float(row[column])))
        yield from lines.items()


def draw_lines(axes, panel, sources, start, end):
    unit = panel["fieldConfig"]["defaults"]["unit"]
    lines = list(series_of(panel, sources, start, end))
    for name, points in lines:
        times, values = zip(*points) if points else ((), ())
        axes.plot(times, values, linewidth=1.2, label=name, marker="o" if len(points) == 1 else None, markersize=3)
        axes.fill_between(times, values, alpha=0.08)
    axes.set_xlim(start, end)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M"))
    axes.xaxis.set_major_locator(matplotlib.dates.AutoDateLocator(maxticks=7))
    axes.yaxis.set_major_formatter(lambda value, _: words(str(value), unit))
    axes.grid(color="#e6e8ea", linewidth=0.6)
    axes.tick_params(labelsize=6, colors=FAINT, length=0)
    axes.spines[:].set_visible(False)
    if lines:
        axes.legend(fontsize=6, frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(-0.02, -0.1))


def draw_number(axes, panel, sources, end):
    target = panel["targets"][0]
    if "expr" in target:
        found = prometheus("query", sources["prometheus"], query=target["expr"], time=end.timestamp())
        value = found[0]["value"][1] if found else ""
    else:
        value = rows(target["rawSql"], sources["postgres"])[1][0][0]
    defaults = panel["fieldConfig"]["defaults"]
    color = "blue"
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or (value and float(value) >= step["value"]):
            color = step["color"]
    axes.set_facecolor(COLORS[color] if value else PANEL)
    axes.text(0.5, 0.5, words(value, defaults["unit"]) if value else "no data", ha="center", va="center", fontsize=18,
              color="white" if value else FAINT, transform=axes.transAxes)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def draw_table(axes, panel, sources):
    axes.axis("off")
    columns, table = rows(panel["targets"][0]["rawSql"], sources["postgres"])
    if not table:
        axes.text(0.5, 0.5, "no rows", ha="center", va="center", fontsize=8, color=FAINT, transform=axes.transAxes)
        return
    units = {override["matcher"]["options"]: part["value"] for override in panel["fieldConfig"]["overrides"]
             for part in override["properties"] if part["id"] == "unit"}
    default = panel["fieldConfig"]["defaults"]["unit"]
    kept = int(panel["gridPos"]["h"] * ROW / 0.2) - 3
    cells = [[words(value, units.get(name, default)) for name, value in zip(columns, row)] for row in table[:kept]]
    widths = [max(len(text) for text in column) + 2 for column in zip(columns, *cells)]
    line = 1 / (kept + 1)
    left = 0
    for number, name in enumerate(columns):
        for place, text in enumerate([name] + [row[number] for row in cells]):
            axes.text(left, 1 - line * (place + 0.5), text, fontsize=6.2, va="center", transform=axes.transAxes,
                      color=COLORS["blue"] if place == 0 else INK, clip_on=True)
        left += widths[number] / sum(widths)


def picture(dashboard, sources, file):
    end = datetime.datetime.now(UTC)
    start = end - datetime.timedelta(hours=HOURS[dashboard["time"]["from"]])
    # As far back as there is anything, so that a young system's picture is not empty.
    born = prometheus("query", sources["prometheus"], query="min(min_over_time(timestamp(up)[6h:15s]))")
    if born:
        hour = datetime.datetime.fromtimestamp(float(born[0]["value"][1]), UTC).replace(minute=0, second=0)
        start = max(start, hour)  # some panels have a point for each hour
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]) + 1.2
    figure = plt.figure(figsize=(24 * COLUMN, height * ROW), facecolor=PAGE)
    figure.text(0.01, 1 - 0.6 / height, dashboard["title"], fontsize=12, weight="bold", color=INK, va="center")
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        top = 1 - (place["y"] + 1.2) / height
        x, w, h = place["x"] / 24, place["w"] / 24, place["h"] / height
        figure.patches.append(matplotlib.patches.Rectangle(
            (x + 0.003, top - h + 0.003), w - 0.006, h - 0.006, transform=figure.transFigure, facecolor=PANEL,
            edgecolor="#dce0e4", linewidth=0.6, zorder=-1))
        figure.text(x + 0.008, top - 0.55 / height, panel["title"], fontsize=7.5, weight="bold", color=INK, va="center")
        kind = panel["type"]
        head, foot, side = 1.05 / height, (1.7 if kind == "timeseries" else 0.3) / height, 0.008
        left = x + side + (0.022 if kind == "timeseries" else 0)
        axes = figure.add_axes((left, top - h + foot, x + w - side - left, h - head - foot), facecolor=PANEL)
        if kind == "timeseries":
            draw_lines(axes, panel, sources, start, end)
        elif kind == "stat":
            draw_number(axes, panel, sources, end)
        else:
            draw_table(axes, panel, sources)
    matplotlib.rcParams.update({"svg.hashsalt": dashboard["uid"], "svg.fonttype": "none"})
    figure.savefig(file, facecolor=PAGE, metadata={"Date": None})


match sys.argv[1:]:
    case [dashboard, postgres, prometheus_url, file]:
        with open(dashboard, encoding="utf-8") as opened:
            picture(json.load(opened), {"postgres": postgres, "prometheus": prometheus_url.rstrip("/")}, file)
    case _:
        sys.exit(__doc__)
