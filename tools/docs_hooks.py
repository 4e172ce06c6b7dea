"""Hooks of mkdocs (`make docs`): pages that lie outside docs/, and links between the two.

The repository's files keep the links that work in the repository. On the site a link to a file that is a page leads to
that page; a link to any other file becomes its path as code, since the site has no copy of it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig  # type: ignore[import-not-found]
from mkdocs.structure.files import File, Files  # type: ignore[import-not-found]
from mkdocs.structure.pages import Page  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parent.parent
# Pages of the site that are files of the repository elsewhere.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "idl/SPEC.md": "idl.md",
}
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCED = re.compile(r"(^```.*?^```)", re.S | re.M)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of `PAGES`."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Rewrites the links of a page, except in fenced code."""
    origin = {page: source for source, page in PAGES.items()}
    here = origin.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    known = {file.src_uri for file in files}

    def rewritten(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or "://" in target or target.startswith("mailto:"):
            return match.group()
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        uri = PAGES.get(wanted, wanted.removeprefix("docs/"))
        if uri in known:
            return (
                f"[{text}]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri))}{hash_sign}{anchor})"
            )
        if not (ROOT / wanted).exists():
            return match.group()  # mkdocs names the broken link
        return text if text.strip("`") == wanted else f"{text} (`{wanted}`)"

    parts = FENCED.split(markdown)
    parts[::2] = [LINK.sub(rewritten, part) for part in parts[::2]]
    return "".join(parts)
