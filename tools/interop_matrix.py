"""Runs the tests of interop/, and writes their results to interop/results.json and docs/compatibility.md.

    ./dev interop                      run all modules, one after the other
    ./dev interop --only pop tls       run interop/test_pop.py and interop/test_tls.py, and keep all other results
    ./dev interop --list               run nothing: list the modules, and add new tests to the results as "not run"

Each module runs in its own process, and its results have their own commit and date. A test that is skipped, for example
because a tool is not installed, counts as "not run". The output of a module is in interop/target/logs.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measurements import machine_text, table

ROOT = Path(__file__).parent.parent
INTEROP = ROOT / "interop"
RESULTS = INTEROP / "results.json"
LOGS = INTEROP / "target" / "logs"
BEGIN, END = "<!-- interop results -->\n", "<!-- end of interop results -->\n"
MODULE_TIMEOUT_S = 7200
#: Timeout of tests that have none of their own.
TEST_TIMEOUT_S = 600
#: Time for the end of the servers after the timeout of a module.
STOP_TIMEOUT_S = 120
NEVER_RUN = "never run"

# interop/ exists in the repository only, not in a release.
sys.path.insert(0, str(INTEROP))
from coverage_matrix import CONTROL, FEATURES, PAIRS, TOGETHER, VERSIONS  # noqa: E402
from servers import build, missing_tools  # noqa: E402

Json = dict[str, Any]
#: Feature, pair and version.
Case = tuple[str, str, str]


class Language(NamedTuple):
    """The texts of the section in one language."""

    page: Path
    feature: str
    pairs: Mapping[str, str]
    tables: tuple[str, str]
    states: tuple[str, str, str]
    no_test: str
    nothing: str
    runs: str
    run_columns: tuple[str, ...]
    conditions: str
    classes: str
    about_classes: str
    class_columns: tuple[str, ...]
    reasons: Mapping[str, str]


ENGLISH = Language(
    page=ROOT / "docs" / "compatibility.md",
    feature="feature",
    pairs={
        "java>gantry": "Java",
        "grpc-java>gantry": "gRPC, Java",
        "grpc-python>gantry": "gRPC, Python",
        "grpc-node>gantry": "gRPC, Node.js",
        "grpc-rust>gantry": "gRPC, Rust",
        "grpc-go>gantry": "gRPC, Go",
        "gantry>java": "GantryMQ's clients, Java's servers",
        "gantry>gantry": "GantryMQ only",
        TOGETHER: "both projects together",
        "suite>gantry": "test suites",
        CONTROL: "Apache only",
    },
    tables=("Apache's clients with GantryMQ's servers:", "Other pairs:"),
    states=("{} passed", "{} failed", "{} not run"),
    no_test="no test",
    nothing="Not run: no test uses this version.",
    runs="Runs",
    run_columns=("module", "result", "not run because", "commit", "date"),
    conditions="Machines and versions:",
    classes="Classes of Apache's integration tests",
    about_classes="`grpc.v2.OutsideProxyGrpcIT` is a class of GantryMQ. It runs Apache's `grpc.v2.ClusterGrpcIT` with "
    "GantryMQ's proxy.\nAll other classes are Apache's.",
    class_columns=("class", "result", "not run because"),
    reasons={},
)
CHINESE = Language(
    page=ROOT / "docs" / "zh" / "compatibility.md",
    feature="功能",
    pairs={
        **ENGLISH.pairs,
        "gantry>java": "GantryMQ 客户端与 Java 服务端",
        "gantry>gantry": "仅 GantryMQ",
        TOGETHER: "两个项目一起运行",
        "suite>gantry": "测试套件",
        CONTROL: "仅 Apache",
    },
    tables=("Apache 的客户端与 GantryMQ 的服务端：", "其他组合："),
    states=("{} 通过", "{} 失败", "{} 未运行"),
    no_test="没有测试",
    nothing="未运行：没有使用该版本的测试。",
    runs="运行记录",
    run_columns=("模块", "结果", "未运行的原因", "提交", "日期"),
    conditions="机器与版本：",
    classes="Apache 集成测试的类",
    about_classes="`grpc.v2.OutsideProxyGrpcIT` 是 GantryMQ 的类，用 GantryMQ 的 Proxy 运行 Apache 的 "
    "`grpc.v2.ClusterGrpcIT`。其他类都来自 Apache。",
    class_columns=("类", "结果", "未运行的原因"),
    reasons={NEVER_RUN: "从未运行"},
)


# -- results --------------------------------------------------------------------------------------------------


def load() -> Json:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"modules": {}}


def save(results: Json) -> None:
    """Writes the result file and both pages."""
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for language in (ENGLISH, CHINESE):
        text = language.page.read_text(encoding="utf-8")
        language.page.write_text(with_section(text, section(results, language)), encoding="utf-8")


def counted(tests: Sequence[Json]) -> Json:
    """Returns the numbers of passed and failed tests, and of those that did not run by reason."""
    states = Counter(test["state"] for test in tests)
    reasons = Counter(test["reason"] for test in tests if test["state"] == "not run")
    return {"passed": states["passed"], "failed": states["failed"], "not_run": dict(sorted(reasons.items()))}


def result_of(tests: Sequence[Json]) -> Json:
    """Returns the result of a module: the counts of its tests, and those of each feature, pair and version.

    The result of a suite also has the counts of each of its classes.
    """
    by_case: dict[Case, list[Json]] = {}
    for test in tests:
        for pair in test["pairs"]:
            by_case.setdefault((test["feature"], pair, test["version"]), []).append(test)
    cases = [
        {"feature": feature, "pair": pair, "version": version, **counted(found)}
        for (feature, pair, version), found in sorted(by_case.items())
    ]
    classes = [
        {"name": test["suite_class"], **(test["parts"] or counted([test]))} for test in tests if test.get("suite_class")
    ]
    return {"total": counted(tests), "cases": cases} | ({"classes": classes} if classes else {})


def merged_declared(results: Json, collected: Mapping[str, Sequence[Json]]) -> Json:
    """Returns the results with the modules and cases of the collected tests. New tests have not run.

    The results have numbers, not tests: a new test that replaces another one of its case keeps the result of that one.
    """
    modules = {}
    for name, tests in collected.items():
        fresh = result_of(tests)
        known = results["modules"].get(name)
        if known is None:
            modules[name] = fresh
        else:
            cases = {case_of(case): case for case in known["cases"]}
            modules[name] = known | {
                "total": with_new_tests(known["total"], fresh["total"]),
                "cases": [with_new_tests(cases.get(case_of(case), case), case) for case in fresh["cases"]],
            }
    return {**results, "modules": modules}


def with_new_tests(known: Json, fresh: Json) -> Json:
    """Returns the known counts with as many tests as the fresh ones. Tests without a result have not run.

    The results of tests that were removed stay until the next run of the module.
    """
    not_run = {reason: number for reason, number in known["not_run"].items() if reason != NEVER_RUN}
    missing = _size(fresh) - known["passed"] - known["failed"] - sum(not_run.values())
    if missing > 0:
        not_run[NEVER_RUN] = missing
    return known | {"not_run": dict(sorted(not_run.items()))}


def _size(counts: Json) -> int:
    return counts["passed"] + counts["failed"] + sum(counts["not_run"].values())


def case_of(case: Json) -> Case:
    return case["feature"], case["pair"], case["version"]


# -- runs -----------------------------------------------------------------------------------------------------


def collected_tests() -> dict[str, list[Json]]:
    """Returns the tests of each module, as tests that have not run."""
    modules: dict[str, list[Json]] = {}
    for test in sorted(pytest(["--collect-only", "-q", INTEROP]), key=lambda test: test["id"]):
        modules.setdefault(test["module"], []).append(test | {"reason": NEVER_RUN})
    return modules


def pytest(arguments: Sequence[str | Path], log: Path | None = None) -> list[Json]:
    """Runs pytest. Returns its tests with their outcomes, or nothing if it was killed."""
    with tempfile.TemporaryDirectory() as directory:
        outcomes = Path(directory) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--matrix={outcomes}", *arguments]
        if log is None:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"interop: the tests cannot be collected:\n{(done.stdout + done.stderr)[-4000:]}")
        else:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("wb") as output:
                _run_to_end(command, output)
        return json.loads(outcomes.read_text()) if outcomes.exists() else []


def _run_to_end(command: Sequence[str | Path], output: Any) -> None:
    """Runs a command. After the timeout, interrupts it, so that its tests end their servers."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    for timeout_s, signal_number in ((MODULE_TIMEOUT_S, signal.SIGINT), (STOP_TIMEOUT_S, signal.SIGKILL)):
        try:
            process.wait(timeout_s)
            return
        except subprocess.TimeoutExpired:
            process.send_signal(signal_number)
    process.wait()


def run_module(name: str, collected: Iterable[Json]) -> Json:
    """Runs a module. Returns its result. A collected test without an outcome has not run."""
    began = time.monotonic()
    ran = pytest(["-q", f"--timeout={TEST_TIMEOUT_S}", INTEROP / name], LOGS / f"{name}.log")
    outcomes = {test["id"]: test for test in ran}
    tests = [outcomes.get(test["id"], test | {"reason": "the run ended early"}) for test in collected]
    return result_of(tests) | {"seconds": round(time.monotonic() - began)}


def conditions() -> Json:
    """Returns the machine, the versions, the date and the commit."""
    sys.path.insert(0, str(ROOT / "bench"))
    from result_files import conditions as of_machine

    found = of_machine()
    found["versions"] |= {name: version for name, version in _versions().items() if version}
    return found


def _versions() -> dict[str, str]:
    commands = {
        "java": (["java", "-version"], r'version "(.*?)"'),
        "maven": (["mvn", "-B", "-version"], r"Apache Maven (\S+)"),
        "go": (["go", "version"], r"go(\d\S*)"),
        "node": (["node", "--version"], r"v(\S+)"),
        "cargo": (["cargo", "--version"], r"cargo (\S+)"),
    }
    files = {
        "rocketmq": ("pom.xml", r"<rocketmq.version>(.*?)<"),
        "rocketmq (earlier)": ("rocketmq-5.4/pom.xml", r"<rocketmq.version>(.*?)<"),
        "rocketmq-client": ("client-4.9/pom.xml", r"<version>(4\..*?)<"),
        "rocketmq-client-java": ("client-grpc/pom.xml", r"rocketmq-client-java</artifactId>\s*<version>(.*?)<"),
        "rocketmq-client-nodejs": ("client-node/package.json", r'rocketmq-client-nodejs": "(.*?)"'),
        "rocketmq (crate)": ("client-rust/Cargo.toml", r'rocketmq = "=(.*?)"'),
    }
    found = {}
    for name, (command, pattern) in commands.items():
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            found[name] = _first(pattern, done.stdout + done.stderr)
    return found | {name: _first(pattern, (INTEROP / file).read_text()) for name, (file, pattern) in files.items()}


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


# -- the section of the docs ----------------------------------------------------------------------------------


def with_section(text: str, rendered: str) -> str:
    """Returns the text of a page with another section between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + rendered + END + after


def section(results: Json, language: Language) -> str:
    """Returns the tables of all versions, and the list of runs."""
    sums = _sums(results)
    parts = []
    for version in VERSIONS:
        parts.append(f"### RocketMQ {version}\n")
        of_version = {case: counts for case, counts in sums.items() if case[2] == version}
        parts += _tables(of_version, version, language) or [f"{language.nothing}\n"]
    if classes := _classes(results, language):
        parts += [f"### {language.classes}\n", f"{language.about_classes}\n", table(language.class_columns, classes)]
    parts += [f"### {language.runs}\n", table(language.run_columns, _runs(results, language))]
    if found := _conditions(results):
        parts += [f"{language.conditions}\n", found]
    return "\n" + "\n".join(parts) + "\n"


def _sums(results: Json) -> dict[Case, Json]:
    """Returns the counts of each case, summed over the modules."""
    sums: dict[Case, Json] = {}
    for module in results["modules"].values():
        for case in module["cases"]:
            found = sums.setdefault(case_of(case), _counts())
            for state in ("passed", "failed"):
                found[state] += case[state]
            found["not_run"] += sum(case["not_run"].values())
    return sums


def _counts() -> Json:
    return {"passed": 0, "failed": 0, "not_run": 0}


def _tables(sums: Mapping[Case, Json], version: str, language: Language) -> list[str]:
    clients = [pair for pair in PAIRS if pair.endswith(">gantry") and pair not in ("gantry>gantry", "suite>gantry")]
    others = [pair for pair in PAIRS if pair not in clients]
    parts: list[str] = []
    for title, pairs in zip(language.tables, (clients, others), strict=True):
        rows = []
        for feature, chinese in FEATURES.items():
            found = [sums.get((feature, pair, version)) for pair in pairs]
            if any(found):
                name = chinese if language is CHINESE else feature
                rows.append([name, *(_cell(counts, language) if counts else language.no_test for counts in found)])
        if rows:
            parts += [f"{title}\n", table([language.feature, *(language.pairs[pair] for pair in pairs)], rows)]
    return parts


def _cell(counts: Json, language: Language) -> str:
    numbers = (counts["passed"], counts["failed"], counts["not_run"])
    return ", ".join(text.format(number) for text, number in zip(language.states, numbers, strict=True) if number)


def _classes(results: Json, language: Language) -> list[list[str]]:
    """Returns a row for each class of a suite."""
    classes = [found for module in results["modules"].values() for found in module.get("classes", ())]
    return [[f"`{found['name']}`", *_result(found, language)] for found in classes]


def _result(counts: Json, language: Language) -> tuple[str, str]:
    """Returns the numbers of a result, and the reasons of the tests that did not run."""
    reasons = [language.reasons.get(reason, reason).replace("|", r"\|") for reason in counts["not_run"]]
    return _cell({**counts, "not_run": sum(counts["not_run"].values())}, language), "; ".join(reasons)


def _runs(results: Json, language: Language) -> list[list[str]]:
    rows = []
    for name, module in results["modules"].items():
        origin = module.get("conditions") or {"commit": "", "date": ""}
        rows.append([f"`{name}`", *_result(module["total"], language), origin["commit"], origin["date"]])
    return rows


def _conditions(results: Json) -> str:
    """Returns a list of the different machines and versions of the runs."""
    found: dict[str, list[str]] = {}
    for module in results["modules"].values():
        if origin := module.get("conditions"):
            versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
            text = f"{machine_text(origin['machine'])}; {versions}"
            if origin["commit"] not in found.setdefault(text, []):
                found[text].append(origin["commit"])
    lines = []
    for text, commits in found.items():
        lines += [f"- {', '.join(commits)}:", *(f"  {line}" for line in _wrapped(text))]
    return "".join(f"{line}\n" for line in lines)


def _wrapped(text: str) -> list[str]:
    lines, words = [""], text.split()
    for word in words:
        if len(lines[-1]) + len(word) > 110:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


# -- the command ----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev interop", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", metavar="NAME", help="modules to run, for example pop for test_pop.py")
    parser.add_argument("--list", action="store_true", help="run nothing, list the modules")
    given = parser.parse_args()
    collected = collected_tests()
    results = merged_declared(load(), collected)
    save(results)
    names = list(results["modules"])
    if given.list:
        print(*names, sep="\n")
        return
    wanted = [f"test_{Path(name).stem.removeprefix('test_')}.py" for name in given.only or names]
    if unknown := set(wanted) - set(names):
        parser.error(f"no module {', '.join(sorted(unknown))} in interop/; --list prints the names")
    if missing_tools() is None:
        build()
    origin = conditions()
    failed = []
    for name in wanted:
        result = run_module(name, collected[name])
        # Another run can have added results.
        results = merged_declared(load(), collected)
        results["modules"][name] = result | {"conditions": origin}
        save(results)
        print(f"interop: {name}: {_cell(_total(result), ENGLISH)} ({result['seconds']} s)", flush=True)
        if result["total"]["failed"]:
            failed.append(name)
    if failed:
        sys.exit(f"interop: failed: {', '.join(failed)}; their output is in {LOGS.relative_to(ROOT)}")


def _total(result: Json) -> Json:
    return {**result["total"], "not_run": sum(result["total"]["not_run"].values())}


if __name__ == "__main__":
    main()
