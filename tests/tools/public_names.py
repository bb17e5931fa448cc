#!/usr/bin/env python3
"""Checks that a program can name what dtrain's interface names: each type in the signature of a public member of a class of
namespace dtrain, or of a public function there, is itself a name of dtrain, or of a namespace that programs write.

usage: public_names.py ROOT | public_names.py --selftest

Public are classes and functions whose comment has the line "@ingroup GROUP", and their members before `private:`.
"""

import pathlib
import re
import sys

# Namespaces whose names programs write as they are: dtrain::backend::SharedMemory.
WRITTEN = {"backend", "topology", "launch", "hooks", "optimizers", "zero", "libtorch", "stream::cuda"}
# Types of signatures that are for dtrain's own callers, with the reason.
INTERNAL = {
    "ControlPlaneOptions": "ProcessGroup::join is for run() and init_process_group()",
    "StoreClient": "Store's constructor is for the control plane",
    "LoopHandle": "Store's constructor is for the control plane",
    "StoreRequest": "StoreCall's constructor is for the store",
    "ElasticWorker": "Elastic's constructor is for run()",
    "DetachThread": "PendingCheckpoint's constructor is for save_checkpoint_async()",
    "HookFunctions": "what libtorch's wrapper gives in place of a hook",
    "StepWork": "ShardedOptimizer::work is for backward()",
    "Shards": "ShardedOptimizer::shares is for checkpoints",
}

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
NAMESPACE = re.compile(r"\bnamespace\s+((?:DTRAIN_NAMESPACE)?(?:::)?[\w:]*)\s*$")
TYPE = re.compile(r"\b(?:class|struct|enum class|enum|using)\s+(?:\[\[\w+\]\]\s*)?([A-Z]\w*)(?:<[\w\s,:]*>)?\s*(?:final)?\s*(?:[:={]|$)")
ALIAS = re.compile(r"\busing\s+((?:\w+::)*)([A-Z]\w*)\s*;")
NAMED_ALIAS = re.compile(r"\busing\s+([A-Z]\w*)\s*=")
WORD = re.compile(r"\b[A-Z]\w+\b")


def plain(text):
    """The text without preprocessor lines, strings and comments; a public declaration's comment becomes PUBLIC_."""
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.MULTILINE)
    text = re.sub(r"/// @ingroup \w+", "PUBLIC_", text)
    return STRING.sub('""', COMMENT.sub("", text))


def statements(text):
    """(head, body) of each declaration: its text before `{` or `;`, and what is between its braces, or None."""
    head, position = 0, 0
    while position < len(text):
        character = text[position]
        if character == ";":
            yield text[head:position], None
            head = position + 1
        elif character == "{":
            depth, begin = 1, position + 1
            while depth and position + 1 < len(text):
                position += 1
                depth += {"{": 1, "}": -1}.get(text[position], 0)
            before = text[head:begin - 1]
            after = text[position + 1:position + 40].lstrip()[:1]
            if re.search(r"=\s*$|[(,]\s*$", before) or after in (",", ")"):  # an initializer, a default argument
                position += 1
                continue
            yield before, text[begin:position]
            head = position + 1
        position += 1


def without_template(head):
    """The head behind `template <...>`, whose parameters are no types of dtrain."""
    while match := re.match(r"\s*template\s*<", head):
        depth, position = 1, match.end()
        while depth and position < len(head):
            depth += {"<": 1, ">": -1}.get(head[position], 0)
            position += 1
        head = head[position:]
    return head


class Declarations:
    """What the headers declare: types by namespace, names of dtrain, and public signatures."""

    def __init__(self):
        self.types = {}  # name -> namespaces below dtrain
        self.names = set()
        self.signatures = []  # (where, text)

    def read(self, where, text, space=None):
        for head, body in statements(text):
            namespace = NAMESPACE.search(head)
            if body is not None and namespace and "using" not in head:
                inner = namespace[1].replace("DTRAIN_NAMESPACE", "").strip(":")
                self.read(where, body, inner if space is None else f"{space}::{inner}".strip(":"))
            elif space is not None and "detail" not in space:
                self.declaration(where, head, body, space)

    def declaration(self, where, head, body, space):
        alias = ALIAS.search(head + ";")
        if alias and body is None:
            self.names.add(alias[2]) if space == "" else None
            return
        declared = TYPE.search(without_template(head.split("PUBLIC_")[-1]) + ("{" if body is not None else ""))
        is_public = "PUBLIC_" in head
        if declared:
            self.names.add(declared[1]) if space == "" else self.types.setdefault(declared[1], set()).add(space)
            if is_public and body is not None and "enum" not in head:
                self.members(f"{where}: {declared[1]}", declared[1], space, head, body)
        elif is_public and "concept" not in head:
            self.signatures.append((where, space, None, head.split("PUBLIC_")[-1]))

    def members(self, where, name, space, head, body):
        is_public = not re.search(r"\bclass\s+(?:\[\[\w+\]\]\s*)?" + name, head)
        for text, inner in statements(body):
            access = re.findall(r"\b(public|private|protected)\s*:(?!:)", text)
            if access:
                is_public = access[-1] == "public"
            if is_public and not re.match(r"\s*(friend|static_assert)\b", re.sub(r"\b(public|private|protected)\s*:(?!:)", "", text)):
                own = NAMED_ALIAS.search(text) or TYPE.search(text + ("{" if inner is not None else ""))
                if own:
                    self.types.setdefault(own[1], set()).add("member")
                elif inner is None or "(" in text:
                    # without a constructor's initializers, and without bodies
                    self.signatures.append((where, space, name, re.split(r"\)\s*:(?!:)", text)[0]))


def problems(headers):
    """Sentences; of the texts of headers by name."""
    declarations = Declarations()
    for where, text in headers.items():
        declarations.read(where, plain(text))
    found = []
    reachable = declarations.names
    for where, space, name, text in declarations.signatures:
        in_dtrain = space == "" or (name in reachable and name is not None)
        if not in_dtrain:
            continue
        for word in sorted(set(WORD.findall(text))):
            spaces = declarations.types.get(word, set())
            is_written = any(one == "member" or one in WRITTEN or one.split("::")[0] in WRITTEN for one in spaces)
            if spaces and word not in reachable and not is_written and word not in INTERNAL:
                found.append(f"{where}: the interface names {sorted(spaces)[0]}::{word}, and dtrain:: has no such name; "
                             f"write 'using {sorted(spaces)[0]}::{word};' in namespace dtrain")
    return sorted(set(found))


GOOD = """
namespace DTRAIN_NAMESPACE::ddp {
/// @ingroup times
struct Record { int step = 0; };
class Hidden {};
/// @ingroup training
class Model {
 public:
  using Inner = int;
  std::vector<Record> records(std::size_t first = 0) const { return Hidden(); }
  Inner inner() const noexcept;
  explicit Model(Record record = {}) : record_(Hidden{}) {}
 private:
  Hidden hidden() const;
};
/// @ingroup training
void train(Model& model, Record record = {});
void helper(Hidden hidden);
}
namespace DTRAIN_NAMESPACE {
using ddp::Model;
using ddp::Record;
/// @ingroup training
template <class M>
class Wrapper {
 public:
  Record last(backend::Shared shared) const;
};
}
namespace DTRAIN_NAMESPACE::backend { struct Shared {}; }
"""


def selftest():
    """The good text passes; each of its edits has the sentence."""
    failures = []
    if problems({"good.hpp": GOOD}):
        failures.append(f"the good text: {problems({'good.hpp': GOOD})}")
    for what, old, new in [
        ("an alias that is missing", "using ddp::Record;\n", ""),
        ("a public member", " private:\n", ""),
        ("a member of a class of dtrain", "Record last(", "Hidden last("),
        ("a member of a specialisation whose parameter has a default",
         "template <class M>\nclass Wrapper {\n public:\n  Record last(",
         "template <class M, class Stage = Record>\nclass Wrapper<M, Stage> {\n public:\n  Hidden last("),
        ("an argument", "backend::Shared shared", "ddp::Hidden shared"),
        ("a default argument", "explicit Model(Record record", "explicit Model(Hidden hidden = {}, Record record"),
    ]:
        text = GOOD.replace(old, new)
        if text == GOOD or not problems({"edited.hpp": text}):
            failures.append(f"{what} goes unnoticed")
    return failures


def main():
    if sys.argv[1:] == ["--selftest"]:
        found = selftest()
    elif len(sys.argv) == 2:
        include = pathlib.Path(sys.argv[1]) / "include"
        found = problems({str(path.relative_to(include)): path.read_text() for path in sorted(include.rglob("*.hpp"))})
    else:
        print(__doc__)
        return 2
    for sentence in found:
        print(sentence)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
