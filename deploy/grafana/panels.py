"""The dashboards' panels, for the checks.

python3 panels.py check    each panel has what it needs; prints what is wrong, exit 1 if anything is
python3 panels.py rules    prints each PromQL query as a rule of Prometheus
python3 panels.py queries DIRECTORY [APP,… ENVIRONMENT,…]
                           writes each SQL query as Grafana would send it, a file each, named by its panel;
                           with All chosen in the lists of apps and environments, or these apps and environments
"""

import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
# What Grafana puts in place of a variable for which All is chosen: the variable's allValue, as it is.
ALL = ".*"
# The variables of every dashboard, and the words in the description of a panel that does not ask for one.
VARIABLES = {
    "app": r"Over all apps\b",
    "environment": r"Over all (apps and )?environments\.|production",
}
SOURCES = {"grafana-postgresql-datasource": "makegood-postgres", "prometheus": "makegood-prometheus"}
# Grafana's macros, for the last day: https://grafana.com/docs/grafana/latest/datasources/postgres/
MACROS = {
    r"\$__timeFilter\(([^)]+)\)": r"\1 BETWEEN now() - interval '1 day' AND now()",
}


def dashboards():
    for file in sorted((HERE / "dashboards").glob("*.json")):
        yield file.stem, json.loads(file.read_text())


def panels():
    for name, dashboard in dashboards():
        for panel in dashboard["panels"]:
            yield name, panel


def variables():
    """Name and SQL of each variable; once, because every dashboard has the same."""
    return sorted({(variable["name"], variable["query"])
        for _, dashboard in dashboards() for variable in dashboard["templating"]["list"]})


def expanded(query, chosen=(ALL, ALL)):
    """SQL or PromQL as Grafana sends it. Chosen: apps and environments, separated by commas."""
    for name, value in zip(VARIABLES, chosen, strict=True):
        query = query.replace(f"${{{name}:csv}}", value).replace(f'"${name}"', f'"{value}"')
    for macro, replacement in MACROS.items():
        query = re.sub(macro, replacement, query)
    return query


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
        if "$" in sql or "$" in expanded(target.get("expr", "")):
            yield f"a macro or variable that this check does not know: {target}"
        if bare := re.findall(r"\b(?:from|join)\s+(?!v_)(\w+)", sql):
            yield f"reads what is no view: {', '.join(bare)}"
    for name, words in VARIABLES.items():
        asked = [f"${{{name}:csv}}" in query or f'"${name}"' in query
            for query in (target.get("rawSql") or target.get("expr") or "" for target in panel.get("targets", []))]
        if all(asked) == bool(re.search(words, panel.get("description", ""))):
            yield f"must ask for the variable {name} in each query, or say in its description that it does not"
    place = panel["gridPos"]
    if place["x"] + place["w"] > 24:
        yield "wider than the page"


def check():
    faults = [f"{name}: {panel.get('title')}: {fault}" for name, panel in panels() for fault in wrong(panel)]
    uids = [dashboard["uid"] for _, dashboard in dashboards()]
    if len(uids) < 4 or len(set(uids)) != len(uids):
        faults.append(f"dashboards: {sorted(uids)}")
    for name, dashboard in dashboards():
        of_all = [variable["name"] for variable in dashboard["templating"]["list"]
            if variable["multi"] and variable["includeAll"] and variable["allValue"] == ALL]
        if of_all != list(VARIABLES):
            faults.append(f"{name}: its variables with several values and All are {of_all}")
    if len(variables()) != len(VARIABLES):
        faults.append(f"the variables differ between dashboards: {variables()}")
    provisioned = (HERE / "provisioning/datasources/makegood.yaml").read_text()
    faults += [f"{uid} is not provisioned" for uid in SOURCES.values() if f"uid: {uid}\n" not in provisioned]
    return faults


def write_queries(directory, *chosen):
    directory = pathlib.Path(directory)
    for name, query in variables():
        (directory / f"variable.{name}.0.sql").write_text(query + ";\n")
    for name, panel in panels():
        for number, target in enumerate(panel["targets"]):
            if "rawSql" in target:
                words = re.sub(r"\W+", "-", panel["title"]).strip("-").lower()
                sql = expanded(target["rawSql"], chosen or (ALL, ALL))
                (directory / f"{name}.{words}.{number}.sql").write_text(sql + ";\n")


def rules():
    queries = [expanded(target["expr"]) for _, panel in panels() for target in panel["targets"] if "expr" in target]
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
        case ["queries", directory, *chosen] if len(chosen) in (0, 2):
            write_queries(directory, *chosen)
        case _:
            sys.exit(__doc__)
