# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of the site for Sphinx: those of the repository, and the API reference.

    python -m docs.site.sources build/site/source

The pages in docs/ are used as they are, except for links that leave the site: they lead to the code
host. ``docs/index.md`` is the only list of pages. Its sections and links become the navigation.
"""

import os
import pathlib
import re
import shutil
import sys
from typing import Dict, Iterator, List, Tuple

from docs.site import reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE_HOST = "https://github.com/rec-estimator/rec_estimator/blob/main"

# Pages outside of docs/ that the site has, and their names there.
OTHER_PAGES = {
    "model_zoo/README.md": "model_zoo.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
REFERENCE = "reference"

_LINK = re.compile(r"(?<=\]\()([^):#\s]+)(#[\w-]+)?(?=\))")
_IMAGE = re.compile(r"\.(png|svg)$")


def pages() -> Dict[str, str]:
    """{path in the repository: path in the site} of all pages."""
    own = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    return {**{f"docs/{name}": name for name in own}, **OTHER_PAGES}


def with_links_of_the_site(text: str, page: str) -> str:
    """The text of a page, whose links lead to pages of the site or to the code host.

    Args:
      text: Markdown.
      page: The path of the page in the repository.
    """
    in_site = pages()

    def replaced(match: "re.Match[str]") -> str:
        path = os.path.normpath(os.path.join(os.path.dirname(page), match.group(1)))
        anchor = match.group(2) or ""
        if path == "README.md" and not anchor:
            path = "docs/index.md"
        if path in in_site:
            return in_site[path] + anchor
        if _IMAGE.search(path) and path.startswith("docs/"):
            return os.path.basename(path)
        return f"{CODE_HOST}/{path}{anchor}"

    return _LINK.sub(replaced, text)


def navigation(index: str) -> List[Tuple[str, List[str]]]:
    """(section, pages) of the index, whose links are those of the site."""
    found = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        links = re.findall(r"^(?:- |\| )\[[^\]]*\]\(([\w/]+)\.md\)", section, re.MULTILINE)
        if links:
            found.append((title, links))
    return found


def _toctrees(index: str) -> Iterator[str]:
    for title, names in navigation(index):
        yield "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *names, "```", ""])


def write(folder: pathlib.Path) -> None:
    """Writes all pages into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, name in pages().items():
        text = with_links_of_the_site((ROOT / path).read_text(), path)
        if name == "index.md":
            text = "\n".join([text, *_toctrees(text)])
        (folder / name).write_text(text)
    for picture in (ROOT / "docs").glob("*.*"):
        if _IMAGE.search(picture.name):
            shutil.copy(picture, folder)
    subjects = reference.write(folder / REFERENCE)
    listed = [f"{REFERENCE}/{subject.page}" for subject in subjects]
    toctree = "\n".join(["```{toctree}", ":maxdepth: 1", "", *listed, "```", ""])
    with (folder / "reference.md").open("a") as page:
        page.write(f"\n{toctree}")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
