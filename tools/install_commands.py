"""Writes the form of the install commands into the documents: from a checkout, or from a package index.

    python tools/install_commands.py                # all documents, as PUBLISHED in src/gantrymq/extras.py says
    python tools/install_commands.py --published    # sets PUBLISHED first: part of a release

| | `PUBLISHED = False` | `PUBLISHED = True` |
|---|---|---|
| clients and servers | `pip install ./` | `pip install gantrymq` |
| with extras | `pip install "./[spark,jdk]"` | `pip install "gantrymq[spark,jdk]"` |
| with native code | `pip install ./ ./native` | `pip install "gantrymq[native]"` |
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
VARIABLE = ROOT / "src" / "gantrymq" / "extras.py"
_PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "native/*.md",
    "bench/*.md",
    "dashboards/*.md",
    "examples/**/*.md",
    "examples/**/*.py",
)
_ASSIGNMENT = re.compile(r"^PUBLISHED = (True|False)$", re.MULTILINE)
_WITH_EXTRAS = re.compile(r'"(?:gantrymq|\./?)\[([a-z,]+)\]"( \./native\b)?')
_WITHOUT_EXTRAS = re.compile(r"(\bpip install )(?:(?:gantrymq|\./?)(?=[\s`]|$)( \./native\b)?|(\./native\b))")
#: Other text that depends on the form: (file, text for a checkout, text for a package index). The second text must not
#: contain the first one: `rewritten` could not distinguish the forms.
SENTENCES = (
    ("README.md", "Status: alpha. GantryMQ is not on a package index: install it from a checkout.", "Status: alpha."),
    ("README.zh-CN.md", "状态：alpha。GantryMQ 尚未发布到软件包索引，请从源码目录安装。", "状态：alpha。"),
    ("docs/index.md", "also on macOS. Run this in the directory with the sources:", "also on macOS:"),
    ("docs/zh/index.md", "也可以在 macOS 上使用。在源码目录中运行：", "也可以在 macOS 上使用："),
    (
        "docs/tutorial/index.md",
        "install GantryMQ. Run this in the directory with the sources:",
        "install GantryMQ:",
    ),
    ("docs/zh/tutorial/index.md", "先在源码目录中安装一次：", "先安装一次："),
    (
        "docs/tutorial/first-spark-row.md",
        "install the extras. Run this in the directory with the sources:",
        "install the extras:",
    ),
    ("docs/zh/tutorial/first-spark-row.md", "安装附加依赖。在源码目录中运行：", "安装附加依赖："),
    (
        "docs/deployment.md",
        "As root, in the directory with the sources, install the package in its own virtual environment:",
        "As root, install the package in its own virtual environment:",
    ),
    (
        "docs/zh/deployment.md",
        "以 root 身份在源码目录中操作，把本包安装在独立的虚拟环境中：",
        "以 root 身份，把本包安装在独立的虚拟环境中：",
    ),
    # Before a release, pip builds gantrymq-native. An index has wheels.
    (
        "README.md",
        "(docs/performance.md), needs cargo 1.85 or later and a C compiler:",
        "(docs/performance.md):",
    ),
    (
        "README.zh-CN.md",
        "（docs/zh/performance.md），需要 cargo 1.85 或更高版本和 C 编译器：",
        "（docs/zh/performance.md）：",
    ),
    (
        "docs/performance.md",
        "\n\npip builds it, which needs cargo 1.85 or later and a C compiler.",
        "\n\nOn a platform without a wheel, pip builds it, which needs cargo 1.85 or later and a C compiler.",
    ),
    (
        "docs/zh/performance.md",
        "\n\npip 从源码构建，需要 cargo 1.85 或更高版本和 C 编译器。",
        "\n\n在没有 wheel 的平台上，pip 从源码构建，需要 cargo 1.85 或更高版本和 C 编译器。",
    ),
    *(
        (
            page,
            "    COPY gantrymq /opt/sources\n    RUN cd /opt/sources && pip install uv",
            "    RUN pip install uv",
        )
        for page in ("docs/spark/operations.md", "docs/zh/spark/operations.md")
    ),
)


def is_published() -> bool:
    """Returns the value of PUBLISHED in src/gantrymq/extras.py."""
    found = _ASSIGNMENT.search(VARIABLE.read_text(encoding="utf-8"))
    if found is None:
        raise RuntimeError(f"{VARIABLE} does not assign PUBLISHED")
    return found[1] == "True"


def documents() -> Iterator[Path]:
    """Yields every document with install commands, except the changelog."""
    for pattern in _PATTERNS:
        yield from (path for path in sorted(ROOT.glob(pattern)) if path.name != "CHANGELOG.md")


def rewritten(document: str, text: str, *, published: bool) -> str:
    """Returns the text of a document with its install commands in the requested form."""
    text = _WITH_EXTRAS.sub(
        lambda match: _requirement([*match[1].split(","), *(["native"] if match[2] else [])], published), text
    )
    text = _WITHOUT_EXTRAS.sub(
        lambda match: match[1] + _requirement(["native"] if match[2] or match[3] else [], published), text
    )
    for name, checkout, index in SENTENCES:
        if name == document:
            text = text.replace(checkout, index) if published else _restored(text, checkout, index)
    return text


def _requirement(extras: list[str], published: bool) -> str:
    if published:
        return f'"gantrymq[{",".join(extras)}]"' if extras else "gantrymq"
    native = " ./native" if "native" in extras else ""
    others = ",".join(extra for extra in extras if extra != "native")
    return (f'"./[{others}]"' if others else "./") + native


def _restored(text: str, checkout: str, index: str) -> str:
    return text if checkout in text else text.replace(index, checkout)


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the form of the install commands into the documents.")
    parser.add_argument("--published", action="store_true", help="set PUBLISHED first")
    if parser.parse_args().published:
        VARIABLE.write_text(_ASSIGNMENT.sub("PUBLISHED = True", VARIABLE.read_text(encoding="utf-8")), encoding="utf-8")
    published = is_published()
    for path in documents():
        text = path.read_text(encoding="utf-8")
        changed = rewritten(path.relative_to(ROOT).as_posix(), text, published=published)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
