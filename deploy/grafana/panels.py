"""The dashboards' panels, for the checks.

python3 panels.py check              each panel has what it needs; prints what is wrong, exit 1 if anything is
python3 panels.py rules              prints each PromQL query as a rule of Prometheus
python3 panels.py queries DIRECTORY  writes each SQL query as Grafana would send it, a file each, named by its panel
"""

import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
SOURCES = {"grafana-postgresql-datasource": "makegood-postgres", "prometheus": "makegood-prometheus"}
# Grafana's macros, for the last day: https://grafana.com/docs/grafana/latest/datasources/postgres/
MACROS = {
    r"\$__timeFilter\(([^)]+)\)": r"\1 BETWEEN now() - interval '1 day' AND now()",
}


def panels():
    for file in sorted((HERE / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            yield file.stem, panel


def expanded(sql):
    for macro, replacement in MACROS.items():
        sql = re.sub(macro, replacement, sql)
    return sql


def wrong(panel):
    """What a panel lacks."""
    for field in ("title", "description"):
        if not panel.get(field):
            yield f"no {field}"
    if not panel.get("fieldConfig", {}).get("defaults", {}).get("unit"):
        yield "no unit"
    if not panel.get("targets"):
        yield "asks nothing"
    for target in panel.get("targets", []):
        source = target.get("datasource", {})
        if SOURCES.get(source.get("type")) != source.get("uid") or source != panel.get("datasource"):
            yield f"a data source that is not provisioned: {source}"
        if bool(target.get("rawSql")) == bool(target.get("expr")):
            yield "neither SQL nor PromQL, or both"
        sql = expanded(target.get("rawSql", ""))
        if "$" in sql:
            yield f"a macro that this check does not know: {sql}"
        if bare := re.findall(r"\b(?:from|join)\s+(?!v_)(\w+)", sql):
            yield f"reads what is no view: {', '.join(bare)}"
    place = panel["gridPos"]
    if place["x"] + place["w"] > 24:
        yield "wider than the page"


def check():
    faults = [f"{name}: {panel.get('title')}: {fault}" for name, panel in panels() for fault in wrong(panel)]
    uids = [json.loads(file.read_text())["uid"] for file in (HERE / "dashboards").glob("*.json")]
    if len(uids) < 4 or len(set(uids)) != len(uids):
        faults.append(f"dashboards: {sorted(uids)}")
    provisioned = (HERE / "provisioning/datasources/makegood.yaml").read_text()
    faults += [f"{uid} is not provisioned" for uid in SOURCES.values() if f"uid: {uid}\n" not in provisioned]
    return faults


def write_queries(directory):
    for name, panel in panels():
        for number, target in enumerate(panel["targets"]):
            if "rawSql" in target:
                words = re.sub(r"\W+", "-", panel["title"]).strip("-").lower()
                (pathlib.Path(directory) / f"{name}.{words}.{number}.sql").write_text(expanded(target["rawSql"]) + ";\n")


def rules():
    queries = [target["expr"] for _, panel in panels() for target in panel["targets"] if "expr" in target]
    return {"groups": [{"name": "panels", "rules": [
        {"record": f"panel:query:{number}", "expr": query} for number, query in enumerate(queries)]}]}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check"]:
            faults = check()
            print("\n".join(faults))
            sys.exit(1 if faults else 0)
        case ["rules"]:
            print(json.dumps(rules()))
        case ["queries", directory]:
            write_queries(directory)
        case _:
            sys.exit(__doc__)
