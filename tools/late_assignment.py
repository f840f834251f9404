"""Finds assignments to attributes of other objects. Only an object's own constructor and methods should set them.

    .venv/bin/python tools/late_assignment.py

Reports two forms of assignment:

- `self.part.attribute = value` in any function
- `part.attribute = value` in a constructor, where `part` is one of its parameters

Such assignments make the state of an object depend on the order of statements elsewhere. Use a constructor parameter, a
method, or an event (`broker/events.py`) instead. `NOT_YET` lists the modules that still have them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "gantrymq"

#: Modules below `SOURCE` that still have such assignments. If a module has none, the check requires its removal.
NOT_YET = {
    "console/server.py",
    "contexts.py",
    "integrations/faststream/subscriber.py",
    "proxy/grpc_call.py",
    "proxy/http2/connection.py",
    "proxy/http2/frame_reader.py",
    "proxy/http2/stream.py",
    "replication/authentication.py",
    "replication/connection.py",
    "store/cleaner.py",
    "store/flusher.py",
    "store/unconfirmed_units.py",
    "store/message_store.py",
    "store/recovery.py",
    "store/replica.py",
    "store/store_threads.py",
    "store/verify.py",
}


def late_assignments(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yields the target of each such assignment."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = function.args.args[1:] + function.args.kwonlyargs if function.name == "__init__" else []
            parameters = {argument.arg for argument in arguments}
            for statement in ast.walk(function):
                for target in _targets(statement):
                    owner = target.value
                    if _is_part(owner) or (isinstance(owner, ast.Name) and owner.id in parameters):
                        yield target


def _is_part(node: ast.expr) -> bool:
    """Returns whether the node is an attribute of `self`, or of one of its attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Name):
            return node.id == "self"
    return False


def _targets(statement: ast.AST) -> Iterator[ast.Attribute]:
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target]
    else:
        return
    for target in targets:
        for each in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(each, ast.Attribute):
                yield each


def main() -> int:
    problems: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        found = list(late_assignments(ast.parse(path.read_text())))
        if found and name not in NOT_YET:
            for target in found:
                where = f"src/gantrymq/{name}:{target.lineno}"
                problems.append(
                    f"{where}: assigns {ast.unparse(target)}: use a constructor parameter, a method or an event"
                )
        if not found and name in NOT_YET:
            problems.append(
                f"src/gantrymq/{name}: has no late assignments: remove it from NOT_YET in {Path(__file__).name}"
            )
    print("\n".join(problems) or "no late assignments")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
