"""What a place says when it gives a web page instead of a file."""

from __future__ import annotations

import re
import urllib.parse
from html.parser import HTMLParser

_IN_TEXT = (
    (("quota exceeded", "too many users have viewed"), "has used up its quota; try in a day"),
    (("virus",), "wants a click because it could not look for viruses; fetch it in a browser"),
)
#: Too common in the text of any page to mean anything there.
_IN_TITLE = (
    (("sign in", "sign-in", "log in", "access denied"), "asks to sign in"),
    (("not found", "404", "no longer available"), "is gone"),
)


class _Form(HTMLParser):
    """The form that leads on to the file, as Google Drive has it for large ones."""

    def __init__(self) -> None:
        super().__init__()
        self.action = ""
        self.fields: dict[str, str] = {}
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes where the form leads, and what it sends along."""
        held = {name: value or "" for name, value in attrs}
        if tag == "form" and "download" in held.get("id", "") + held.get("action", ""):
            self.action, self._inside = held.get("action", ""), True
        elif tag == "input" and self._inside and held.get("name"):
            self.fields[held["name"]] = held.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        """Leaves the form."""
        if tag == "form":
            self._inside = False


def next_step(page: str, address: str) -> str | None:
    """Where the page's own download button leads, if it has one.

    Example:
        >>> page = '<form id="download-form" action="/get"><input name="id" value="7"></form>'
        >>> next_step(page, "http://place/file"), next_step("<p>Sorry</p>", "http://place/file")
        ('http://place/get?id=7', None)
    """
    form = _Form()
    form.feed(page)
    if not form.action:
        return None
    to = urllib.parse.urlsplit(urllib.parse.urljoin(address, form.action))
    if to.scheme not in ("http", "https"):
        return None
    query = [*urllib.parse.parse_qsl(to.query), *form.fields.items()]
    return urllib.parse.urlunsplit(to._replace(query=urllib.parse.urlencode(query)))


def explain(page: str) -> str:
    """A few words on why this page came instead of a file.

    Example:
        >>> explain("<title>Google Drive - Quota exceeded</title>")
        'has used up its quota; try in a day'
        >>> explain("<title>Our group</title>")
        "gives a web page ('Our group') instead of the file"
    """
    text = " ".join(
        re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", page, flags=re.S | re.I).split()
    )
    found = re.search(r"<title[^>]*>(.*?)</title>", page, flags=re.S | re.I)
    title = " ".join(found.group(1).split())[:60] if found else ""
    for where, meanings in ((text, _IN_TEXT), (title, _IN_TITLE)):
        for marks, meaning in meanings:
            if any(mark in where.lower() for mark in marks):
                return meaning
    return f"gives a web page ({title!r}) instead of the file" if title else "gives a web page"
