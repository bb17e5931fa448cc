#!/usr/bin/env python3
"""Reads the job files of examples/kubernetes and examples/azure_ml, and checks their keys, values and variables.

usage: job_files.py ROOT | job_files.py --selftest

parse() is a strict reader of the YAML that these files use: block and flow mappings and sequences, plain and quoted scalars,
folded blocks (`>-`), several documents. What YAML reads in two ways, as the plain scalars 2:4, 1.0 and yes, is refused.
A Kubernetes file is a service and an Indexed Job whose names, numbers of ranks and addresses belong together. Every variable
DTRAIN_... of a job is one that dtrain reads. azure_jobs.py runs the jobs of examples/azure_ml.
"""

import pathlib
import re
import sys
import tempfile

AZURE_KEYS = {  # of every job file
    "$schema": str, "type": "command", "experiment_name": str, "display_name": str, "command": str, "compute": str,
    "inputs": {"data": str, "epochs": int},
    "outputs": {"checkpoints": {"type": str, "mode": "rw_mount", "path": str}},  # another mode loses them with the node
    "environment": {"build": {"path": str, "dockerfile_path": str}},
    "environment_variables": {"DTRAIN_LIVENESS_SECONDS": str},
    "resources": {"instance_count": int},
}
AZURE_DISTRIBUTIONS = {
    "mpi": {"type": "mpi", "process_count_per_instance": int},
    "pytorch": {"type": "pytorch", "process_count_per_instance": int},
    "tensorflow": {"type": "tensorflow", "worker_count": int},
    None: None,
}
SERVICE_KEYS = {
    "apiVersion": "v1", "kind": "Service", "metadata": {"name": str},
    "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": str}},
}
POD_KEYS = {"subdomain": str, "restartPolicy": "Never",
            "containers": [{"name": str, "image": str, "command": [str], "env": list}]}
JOB_KEYS = {"completionMode": "Indexed", "completions": int, "parallelism": int, "template": {"spec": POD_KEYS}}
ELASTIC_KEYS = JOB_KEYS | {
    "backoffLimitPerIndex": int, "activeDeadlineSeconds": int,
    "podFailurePolicy": {"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75, 143]}}]},
    "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
    "template": {"spec": POD_KEYS | {"terminationGracePeriodSeconds": int}},
}
SECRET_KEYS = {"secretKeyRef": {"name": str, "key": str}}


class Failure(Exception):
    pass


def require(condition, sentence):
    if not condition:
        raise Failure(sentence)


# ---- YAML

KEY = r"[$A-Za-z_][\w./-]*"
QUOTED = r'"[^"\\]*"'
WORD = re.compile(r"~|null|true|false|y|n|yes|no|on|off|\.inf|\.nan", re.IGNORECASE)
NUMBER = re.compile(r"[-+.]?\d[\d_.:eExXa-fA-F+-]*")


def scalar(text, where):
    """A quoted string, true, false, a decimal number, or a plain string."""
    if re.fullmatch(QUOTED, text):
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"0|[1-9]\d*", text):
        return int(text)
    require(not WORD.fullmatch(text) and not NUMBER.fullmatch(text), f"{where}: YAML may read {text!r} in two ways: quote it")
    require(re.fullmatch(r"[\w/.][\w/.:=+ -]*", text) and not re.search(r":(?: |$)", text), f"{where}: no plain scalar: {text!r}")
    return text


def new_key(key, mapping, where):
    require(not WORD.fullmatch(key), f"{where}: YAML may not read the key {key!r} as text")
    require(key not in mapping, f"{where} names {key} again")
    return key


def flow(text, where):
    """{key: value, ...}, [value, ...] or a scalar; @returns the value and the text behind it."""
    closing = {"{": "}", "[": "]"}.get(text[:1])
    if closing is None:
        found = re.match(rf"{QUOTED}|[^\[\]{{}},\"]+", text)
        require(found, f"{where}: no value: {text!r}")
        return scalar(found[0].strip(), where), text[found.end():].lstrip()
    value = {} if closing == "}" else []
    rest = text[1:].lstrip()
    while True:
        if closing == "}":
            found = re.match(rf"({KEY}): +", rest)
            require(found, f"{where}: no key: {rest!r}")
            key = new_key(found[1], value, where)
            value[key], rest = flow(rest[found.end():], where)
        else:
            item, rest = flow(rest, where)
            value.append(item)
        end, rest = rest[:1], rest[1:].lstrip()
        require(end in (",", closing) and end, f"{where}: neither ',' nor {closing!r}: {end + rest!r}")
        if end == closing:
            return value, rest


class Lines:
    """The lines of one document that are neither empty nor comments: number, indentation, text with and without comment."""

    def __init__(self, numbered):
        self.lines = []
        for number, line in numbered:
            whole = line.strip(" ")
            text = re.match(rf"(?:{QUOTED}|(?!(?:^| +)#)[^\"])*", whole)[0]
            is_cut = re.match(r" *(?:#|$)", whole[len(text):])  # not by a quote without an end
            if whole and not whole.startswith("#"):
                self.lines.append((number, len(line) - len(line.lstrip(" ")), text if is_cut else whole, whole))
        self.at = 0

    def more(self, indent):
        return self.at < len(self.lines) and self.lines[self.at][1] >= indent

    def block(self, indent):
        require(self.more(indent), f"line {self.lines[self.at - 1][0]}: a value is missing")
        return self.sequence(indent) if self.lines[self.at][2].startswith("- ") else self.mapping(indent)

    def take(self, indent, pattern):
        number, found, text, _ = self.lines[self.at]
        match = re.fullmatch(pattern, text)
        require(found == indent, f"line {number} is indented wrongly: {text!r}")
        require(match, f"line {number} is no YAML that this test reads: {text!r}")
        return f"line {number}", match

    def sequence(self, indent):
        items = []
        while self.more(indent):
            where, match = self.take(indent, r"- (.+)")
            if re.match(rf"{KEY}:(?: |$)", match[1]):  # the first key of a mapping
                number, _, _, whole = self.lines[self.at]
                self.lines[self.at] = (number, indent + 2, match[1], whole)
                items.append(self.mapping(indent + 2))
                continue
            self.at += 1
            items.append(self.whole(match[1], where))
        return items

    def mapping(self, indent):
        found = {}
        while self.more(indent):
            where, match = self.take(indent, rf"({KEY}):(?: (.+))?")
            key = new_key(match[1], found, where)
            self.at += 1
            found[key] = (self.block(indent + 2) if match[2] is None else
                          self.folded(indent + 2) if match[2] == ">-" else self.whole(match[2], where))
        return found

    def folded(self, indent):
        parts = []
        first = self.lines[self.at - 1][0]
        while self.more(indent):
            number, _, text, whole = self.lines[self.at]
            self.take(indent, r".+")
            parts.append(text)
            require(text == whole and number == first + len(parts), f"line {number}: a comment or gap in a folded block")
            self.at += 1
        require(parts, f"line {first}: a value is missing")
        return " ".join(parts)

    @staticmethod
    def whole(text, where):
        if text[:1] not in "{[":
            return scalar(text, where)
        value, rest = flow(text, where)
        require(not rest, f"{where}: text behind the value: {rest!r}")
        return value


def parse(text):
    """@returns the documents of a file: mappings of str, int, bool, mappings and lists"""
    documents = [[]]
    require(re.fullmatch(r"[\n -~]*", text), "the file has a tab or another byte that is no ASCII text")
    for number, line in enumerate(text.splitlines(), 1):
        require(not line.endswith(" "), f"line {number} ends with a blank")
        require(not re.match(" +#", line), f"line {number}: a comment with a line of its own begins that line")
        if line.startswith("---"):
            require(line == "---", f"line {number}: text behind ---")
            documents.append([])
        else:
            documents[-1].append((number, line))
    values = []
    for document in documents:
        lines = Lines(document)
        require(lines.lines, "a document is empty")
        values.append(lines.mapping(0))
        require(not lines.more(0), "a document has more than one mapping")
    return values


# ---- what the files say

def check(found, wanted, where):
    """@param wanted a type, a value, or a mapping or list of these; keys are those of the mapping, and no others"""
    if isinstance(wanted, type):
        require(type(found) is wanted and (found or found == 0), f"{where} is to be a {wanted.__name__}: {found!r}")
    elif isinstance(wanted, dict):
        require(isinstance(found, dict), f"{where} is to be a mapping: {found!r}")
        require(found.keys() == wanted.keys(), f"{where} is to have the keys {sorted(wanted)}: {sorted(found)}")
        for key, value in wanted.items():
            check(found[key], value, f"{where}.{key}")
    elif isinstance(wanted, list):
        require(isinstance(found, list) and len(found) == len(wanted), f"{where} is to be a list of {len(wanted)}: {found!r}")
        for number, (item, each) in enumerate(zip(found, wanted)):
            check(item, each, f"{where}[{number}]")
    else:
        require(type(found) is type(wanted) and found == wanted, f"{where} is to be {wanted!r}: {found!r}")


def azure_job(text, name):
    """@returns the fields of a job file, and its distribution or None"""
    documents = parse(text)
    require(len(documents) == 1, f"{name} has {len(documents)} documents")
    fields = documents[0]
    distribution = fields.pop("distribution", None)
    kind = distribution.get("type") if isinstance(distribution, dict) else distribution
    require(isinstance(kind, (str, type(None))) and kind in AZURE_DISTRIBUTIONS, f"{name} has a distribution of type {kind!r}")
    check(fields, AZURE_KEYS, name)
    if distribution is not None:
        check(distribution, AZURE_DISTRIBUTIONS[kind], f"{name}.distribution")
    return fields, distribution


def variables_of_pod(entries, name):
    variables = {}
    for entry in entries:
        require(isinstance(entry, dict), f"{name}.env has {entry!r}")
        check(entry, {"name": str, **({"value": str} if "value" in entry else {"valueFrom": SECRET_KEYS})}, f"{name}.env")
        require(entry["name"] not in variables, f"{name}.env has {entry['name']} twice")
        variables[entry["name"]] = entry.get("value")
    return variables


def check_kubernetes(text, name):
    """@returns the names of the variables that the pods get"""
    documents = parse(text)
    require(len(documents) == 2, f"{name} is to be a service and a job, and has {len(documents)} documents")
    service, job = documents
    check(service, SERVICE_KEYS, f"{name}: service")
    elastic = "DTRAIN_WORLD_SIZE" in text
    check(job, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": str},
                "spec": ELASTIC_KEYS if elastic else JOB_KEYS}, f"{name}: job")
    spec = job["spec"]
    pod = spec["template"]["spec"]
    variables = variables_of_pod(pod["containers"][0]["env"], name)
    ranks = spec["completions"]
    wanted = {"MASTER_ADDR", "DTRAIN_SECRET"} | ({"DTRAIN_WORLD_SIZE"} if elastic else {"WORLD_SIZE", "DTRAIN_JOB_ID"})
    require(variables.keys() == wanted, f"{name}.env is to have {sorted(wanted)}: {sorted(variables)}")
    require(variables["DTRAIN_SECRET"] is None, f"{name}: the secret stands in the file")
    require(pod["subdomain"] == service["metadata"]["name"], f"{name}: the pods' subdomain is not the service's name")
    require(service["spec"]["selector"]["job-name"] == job["metadata"]["name"], f"{name}: the service is another job's")
    require(variables["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{pod['subdomain']}",
            f"{name}: MASTER_ADDR is not the address of pod 0: {variables['MASTER_ADDR']}")
    require(ranks > 1 and spec["parallelism"] == ranks, f"{name}: completions {ranks}, parallelism {spec['parallelism']}")
    stated = variables["DTRAIN_WORLD_SIZE" if elastic else "WORLD_SIZE"]
    sizes = re.fullmatch(r"([1-9]\d*):([1-9]\d*)" if elastic else r"([1-9]\d*)", stated or "")
    require(sizes and int(sizes[sizes.lastindex]) == ranks >= int(sizes[1]), f"{name}: {ranks} pods and {stated} ranks")
    return variables


def check_variables(variables, readable, name):
    for variable in variables:
        require(not variable.startswith("DTRAIN_") or variable in readable, f"{name}: dtrain reads no variable {variable}")


def check_file(path, readable):
    text = path.read_text(encoding="utf-8")
    name = f"{path.parent.name}/{path.name}"
    if path.parent.name == "azure_ml":
        fields, _ = azure_job(text, name)
        check_variables(fields["environment_variables"], readable, name)
        build = fields["environment"]["build"]
        dockerfile = path.parent / build["path"] / build["dockerfile_path"]
        require(dockerfile.is_file(), f"{name}: the file {dockerfile} does not exist")
    else:
        check_variables(check_kubernetes(text, name), readable, name)
    require(re.match(r"# .*\n(?:#.*\n)*#   (?:kubectl|az) ", text), f"{name} does not begin with what it is, and its command")


# ---- the selftest

def faults():
    """(which text, old, new): each changed text is refused."""
    job, elastic, azure = "kubernetes/job.yml", "kubernetes/elastic.yml", "azure_ml/pytorch.yml"
    return [
        # YAML
        (job, "spec:\n  clusterIP", "spec:\n\tclusterIP"), (job, "spec:\n  clusterIP", "spec:\n   clusterIP"),
        (job, "  clusterIP: None\n", "  clusterIP: None\n  clusterIP: None\n"), (job, "kind: Job", "kind Job"),
        (job, "{name: train}\nspec", "{name: train\nspec"), (job, "{name: train}\nspec", "{name: train} x\nspec"),
        (job, "{name: train}\nspec", "{name: train, name: train}\nspec"), (job, "{name: train}\nspec", "{name}\nspec"),
        (job, "[/train]", "[/train}"), (job, "[/train]", "[]"), (job, "[/train]", "&a [/train]"), (job, "[/train]", ""),
        (job, 'value: "4"', "value: 4"), (job, 'value: "4"', 'value: "4'), (job, "completions: 4", 'completions: "4"'),
        (job, "completions: 4", "completions: 04"), (job, "completions: 4", "completions: 4.0"),
        (elastic, 'value: "2:4"', "value: 2:4"), (elastic, 'Indexes: "0"', "Indexes: 0"), (job, "IP: None", "IP: ~"),
        (job, "Addresses: true", "Addresses: yes"), (job, "---\n", "--- x\n"), (job, "---\n", "---\n---\n"),
        (job, "          image: ", "         image: "), (job, "      containers:\n", "      containers:\n      - x: 1\n"),
        (job, "image: registry", "image: a: registry"), (job, "image: registry", "image: *registry"),
        (azure, "command: >-\n", "command: |\n"), (azure, "command: >-\n", "command: >-\n# nothing\n"),
        (azure, "  --checkpoint", "  # --checkpoint"), (azure, "fashion_mnist.ckpt\n", "fashion_mnist.ckpt \n"),
        # Kubernetes
        (job, "---\n", ""), (job, "kind: Service", "kind: Servise"), (job, "apiVersion: batch/v1", "apiVersion: v1"),
        (job, "  clusterIP: None\n", ""), (job, "publishNotReady", "publishReady"), (job, "resses: true", "resses: false"),
        (job, "job-name: train", "job-name: other"), (job, "subdomain: train", "subdomain: other"),
        (job, "completionMode: Indexed", "completionMode: NonIndexed"), (job, "completions: 4", "completions: 3"),
        (job, "parallelism: 4", "parallelism: 2"), (job, 'value: "4"', 'value: "5"'), (job, 'value: "4"', 'value: "2:4"'),
        (job, "restartPolicy: Never", "restartPolicy: OnFailure"), (job, "train-0.train", "train-1.train"),
        (job, "train-0.train", "train-0"), (job, "name: WORLD_SIZE", "name: WORLDSIZE"), (job, "key: secret", "kei: secret"),
        (job, "name: DTRAIN_JOB_ID", "name: DTRAIN_JOBID"), (job, "name: DTRAIN_JOB_ID", "name: MASTER_ADDR"),
        (job, "valueFrom: {secretKeyRef: {name: train, key: secret}}", 'value: "0123456789abcdef"'),
        (elastic, 'value: "2:4"', 'value: "2:5"'), (elastic, 'value: "2:4"', 'value: "5:4"'), (elastic, "[75, 143]", "[75]"),
        (elastic, 'value: "2:4"', 'value: "4"'), (elastic, "DisruptionTarget", "Disruption"), (elastic, 'es: "0"', 'es: "1"'),
        (elastic, "  backoffLimitPerIndex: 10", "  backoffLimit: 10"), (elastic, "terminationGracePeriodSeconds", "grace"),
        (elastic, 'status: "True"', "status: true"), (elastic, "action: Ignore, onExit", "action: Count, onExit"),
        (job, "# A job", "A job"),
        # Azure ML
        (azure, "type: command", "type: sweep"), (azure, "mode: rw_mount", "mode: upload"), (azure, "compute:", "computer:"),
        (azure, "type: pytorch", "type: ray"), (azure, "  process_count_per_instance: 2\n", ""),
        (azure, "process_count_per_instance: 2", "worker_count: 2"), (azure, "instance_count: 2", "instance_count: two"),
        (azure, 'SECONDS: "40"', "SECONDS: 40"), (azure, "DTRAIN_LIVENESS_SECONDS", "DTRAIN_LIVENES_SECONDS"),
        (azure, "environment/Dockerfile", "environment/Dockerfil"), (azure, "  epochs: 3\n", ""), (azure, "#   az ", "#   "),
    ]


def selftest(root):
    """The files are right, and each of the faults in one is found."""
    texts = {f"{path.parent.name}/{path.name}": path.read_text(encoding="utf-8") for path in files_below(root)}
    readable = variables_of_dtrain(root)
    wrong = []
    with tempfile.TemporaryDirectory(prefix="job_files.") as scratch:
        folder = pathlib.Path(scratch)
        (folder / "examples" / "azure_ml" / "environment").mkdir(parents=True)
        (folder / "examples" / "azure_ml" / "environment" / "Dockerfile").write_text("")
        (folder / "examples" / "kubernetes").mkdir()
        for name, old, new in [*((name, "", "") for name in texts), *faults()]:
            text = texts[name]
            path = folder / "examples" / name
            path.write_text(text.replace(old, new, 1) if old else text)
            if old not in text:
                wrong.append(f"selftest: {name} has no {old!r}")
                continue
            try:
                check_file(path, readable)
                if old:
                    wrong.append(f"selftest: {name} with {new!r} for {old!r} is not refused")
            except Failure as failure:
                if not old:
                    wrong.append(f"selftest: {failure}")
    return wrong


def files_below(root):
    return sorted(path for name in ("kubernetes", "azure_ml") for path in (root / "examples" / name).glob("*.yml"))


def variables_of_dtrain(root):
    texts = [path.read_text(encoding="utf-8") for path in (root / "include" / "dtrain").rglob("*.hpp")]
    return {name for text in texts for name in re.findall(r"\"(DTRAIN_[A-Z_]+[A-Z])\"", text)}


def main():
    if sys.argv[1:] == ["--selftest"]:
        found = selftest(pathlib.Path(__file__).resolve().parents[2])
    else:
        root = pathlib.Path(sys.argv[1])
        readable, found = variables_of_dtrain(root), []
        for path in files_below(root):
            try:
                check_file(path, readable)
            except Failure as failure:
                found.append(str(failure))
        if not found and len(files_below(root)) < 6:
            found.append("examples/kubernetes and examples/azure_ml do not have the six job files")
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
