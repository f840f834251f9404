"""MkDocs hooks for the documentation site: generated pages, the Chinese site's images, and links outside the site.

People also read the files of docs/ in the repository. The pages therefore link to source files, and Chinese pages link
to English pages that have no translation. On the site, a link to a source file becomes the name of the file. A link to
an English page leads to the English site, which is one directory up. Chinese pages show the images of docs/images:
the Chinese site has copies of those that it needs.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ICON = ROOT / "src" / "gantrymq" / "console" / "static" / "icon.svg"
STYLE_SHEET = "stylesheets/site.css"

sys.path.insert(0, str(Path(__file__).parent))
import site_reference  # noqa: E402
from search_synonyms import SYNONYMS  # noqa: E402

# [text](target), except images, anchors and web addresses.
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)\s]+)\)")
# The part of an image's address that leads out of docs/zh.
_IMAGE = re.compile(r"(!\[[^\]]*\]\()\.\./((?:\.\./)*images/([^)\s]+)\))")
_FENCE = re.compile(r"^(```.*?^```$)", re.DOTALL | re.MULTILINE)
_SAID = {"en": "{text} (`{path}` in the sources)", "zh": "{text}（源码中的 `{path}`）"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds generated pages, the console's icon, and to the Chinese site the style sheet and images of docs/."""
    language = _language(config)
    files.append(File.generated(config, "images/icon.svg", abs_src_path=str(ICON)))
    if language == "zh":
        pages = [file.content_string for file in files.documentation_pages()]
        names = {f"images/{match[3]}" for page in pages for match in _IMAGE.finditer(page)}
        for name in sorted({*names, STYLE_SHEET}):
            files.append(File.generated(config, name, abs_src_path=str(DOCS / name)))
    for path, content in site_reference.pages(language).items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces the links of a page that lead outside the site."""
    directory = posixpath.normpath(
        posixpath.join(Path(config.docs_dir).relative_to(ROOT).as_posix(), posixpath.dirname(page.file.src_uri))
    )

    def outside(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(directory, path))
        docs = Path(config.docs_dir).relative_to(ROOT).as_posix()
        if path.startswith(f"{docs}/"):
            return match[0]
        if path.startswith("docs/") and path.endswith(".md"):
            # Example: docs/zh/a.md becomes site/zh/a.html, and the target is site/b.html.
            up = "../" * (page.file.src_uri.count("/") + 1)
            html = path.removeprefix("docs/").removesuffix(".md") + ".html"
            return f'<a href="{up}{html}{"#" if anchor else ""}{anchor}">{_html(text)}</a>'
        return _SAID[_language(config)].format(text=text, path=path)

    if _language(config) == "zh":
        markdown = _IMAGE.sub(r"\1\2", markdown)
    parts = _FENCE.split(markdown)
    # Every second part is a code block.
    return "".join(part if number % 2 else _LINK.sub(outside, part) for number, part in enumerate(parts))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adds the synonyms of a page for the search index, in a paragraph that readers do not see."""
    words = SYNONYMS.get(page.file.src_uri)
    return f"{html}\n<p hidden>Kafka: {words}</p>" if words else html


def _html(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text.replace("&", "&amp;").replace("<", "&lt;"))


def _language(config: MkDocsConfig) -> str:
    return "zh" if Path(config.docs_dir).name == "zh" else "en"
