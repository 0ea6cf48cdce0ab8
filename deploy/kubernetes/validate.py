"""Builds a kustomization and holds every object of it against Kubernetes' own schema, strictly, and against the others.

    validate.py DIRECTORY VERSION

Builds with `kubectl`; the schemas are those of the package kubernetes-validate. They know no objects of KEDA: of a ScaledObject the target and the limits are looked at
here, and its queries' metrics by deploy/check. What no schema sees: selectors that select nothing, probes and policies of
ports that are not there, a container that may write or is root, a MAKEGOOD_ variable that stops the start.
"""

import pathlib
import re
import subprocess
import sys

import kubernetes_validate
import yaml

SETTINGS = pathlib.Path("Sources/Settings/Settings.swift")


def build(directory):
    result = subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True)
    if result.returncode != 0 or result.stderr:
        sys.exit(result.stderr)
    return result.stdout


def is_selected(selector, labels):
    return selector["matchLabels"].items() <= labels.items()


def look_at_pod(name, template, variables):
    spec = template["spec"]
    context = spec["securityContext"]
    yield context["runAsNonRoot"] is True and context["runAsUser"] > 0, f"{name} may be root"
    yield context["seccompProfile"]["type"] == "RuntimeDefault", f"{name} has no seccomp profile"
    yield spec["automountServiceAccountToken"] is False, f"{name} has a token of Kubernetes"
    yield spec["enableServiceLinks"] is False, f"{name} gets variables of services"
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in spec.get("initContainers", []) + spec["containers"]:
        own = container["securityContext"]
        where = f"{name}/{container['name']}"
        yield own["readOnlyRootFilesystem"] is True, f"{where} may write"
        yield own["allowPrivilegeEscalation"] is False, f"{where} may gain rights"
        yield own["capabilities"]["drop"] == ["ALL"], f"{where} has capabilities"
        yield "memory" in container["resources"]["limits"], f"{where} has no limit of memory"
        yield {mount["name"] for mount in container["volumeMounts"]} <= volumes, f"{where} mounts what is not there"
        yield ":" in container["image"], f"{where} has an image without a tag"
        for variable in container.get("env", []):
            known = variable["name"].removesuffix("_FILE")
            yield known in variables, f"{where}: the program does not know {variable['name']}"
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                get = container[probe]["httpGet"]
                yield get["port"] in ports, f"{where}: {probe} asks a port that is not there"
                wanted = "/health/ready" if probe == "readinessProbe" else "/health/live"
                yield get["path"] == wanted, f"{where}: {probe} asks {get['path']}"


def look(objects):
    variables = set(re.findall(r'"(MAKEGOOD_[A-Z_]+)":', SETTINGS.read_text()))
    pods = {}
    for object in objects:
        name = f"{object['kind']}/{object['metadata']['name']}"
        yield object["metadata"].get("namespace") == "makegood", f"{name} is in no namespace"
        if object["kind"] in ("Deployment", "Job"):
            pods[name] = object["spec"]["template"]
            yield from look_at_pod(name, object["spec"]["template"], variables)
        if object["kind"] == "Deployment":
            labels = object["spec"]["template"]["metadata"]["labels"]
            yield is_selected(object["spec"]["selector"], labels), f"{name} does not select its own pods"
            others = [o for o in objects if o["kind"] == "Deployment" and o is not object]
            for other in others:
                yield not is_selected(
                    object["spec"]["selector"], other["spec"]["template"]["metadata"]["labels"]
                ), f"{name} selects the pods of another"
    labels = [pod["metadata"]["labels"] for pod in pods.values()]
    names = {port["name"] for pod in pods.values() for c in pod["spec"]["containers"] for port in c.get("ports", [])}
    for object in objects:
        name, spec = f"{object['kind']}/{object['metadata']['name']}", object.get("spec", {})
        if object["kind"] == "PodDisruptionBudget":
            yield sum(is_selected(spec["selector"], l) for l in labels) == 1, f"{name} is not for one kind of pod"
        if object["kind"] == "Service":
            yield any(spec["selector"].items() <= l.items() for l in labels), f"{name} selects nothing"
            yield all(port["targetPort"] in names for port in spec["ports"]), f"{name} leads to a port that is not there"
        if object["kind"] == "NetworkPolicy":
            yield all(
                port["port"] in names for rule in spec.get("ingress", []) for port in rule["ports"]
            ), f"{name} opens a port that is not there"
            chosen = [l for l in labels if is_selected({"matchLabels": spec["podSelector"].get("matchLabels", {})}, l)]
            yield chosen, f"{name} is for no pod"
        if object["kind"] in ("ScaledObject", "HorizontalPodAutoscaler"):
            target = f"Deployment/{spec['scaleTargetRef']['name']}"
            yield target in pods, f"{name} scales what is not there"
            deployment = next(o for o in objects if f"{o['kind']}/{o['metadata']['name']}" == target)
            yield "replicas" not in deployment["spec"], f"{name} and {target} both say how many"
            least = spec.get("minReplicaCount", spec.get("minReplicas"))
            most = spec.get("maxReplicaCount", spec.get("maxReplicas"))
            yield 2 <= least < most, f"{name}: from {least} to {most}"
        if object["kind"] == "ScaledObject":
            for trigger in spec["triggers"]:
                yield {"serverAddress", "query", "threshold"} <= trigger["metadata"].keys(), f"{name}: a trigger lacks something"
                yield all(isinstance(v, str) for v in trigger["metadata"].values()), f"{name}: KEDA takes texts only"


def main(directory, version):
    objects = [object for object in yaml.safe_load_all(build(directory)) if object]
    failures = []
    for object in objects:
        if object["apiVersion"].startswith("keda.sh/"):
            continue
        try:
            kubernetes_validate.validate(object, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.path))
            failures.append(f"{object['kind']}/{object['metadata']['name']}: {path}: {error.message}")
    failures += [words for holds, words in look(objects) if not holds]
    for failure in failures:
        print(failure)
    print(f"{len(objects)} objects")
    sys.exit(1 if failures or not objects else 0)


main(*sys.argv[1:])
