"""What must not be shown: passwords and tokens, masked wherever a text may have them (F62)."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

MASK = "***"

# Credentials before the host, after any number of slashes. The second form is a password with a raw slash, as
# `user:pa/ss@host`: what follows the colon is no port then. A quote ends a URL unless it is escaped, so that a whole
# JSON line can be masked at once. The lengths are bounded so that no text is slow.
_CREDENTIALS = re.compile(
    r"""(?<=://)/{0,9}(?:(?:[^/?#\s"<>\\]|\\.){0,999}@|[^:/?#\s"<>\\@\[]{0,999}:(?!\d*(?:[/?#\s"<>]|$))(?:[^\s"<>\\]|\\.){0,999}@)"""
)
# A parameter of a query, a fragment or a path (`;jsessionid=`), raw or inside another URL's query, percent-encoded.
_PARAMETER = re.compile(r"""(?:[?&;#]|%3[fFbB]|%2[36])([^=&;?#\s"<>\\]{1,100}?)(=|%3[dD])""")
_VALUE = re.compile(r"""(?:[^&#\s"<>\\]|\\.)*""")
_VALUE_INSIDE = re.compile(r"""(?:[^&#\s"<>\\%]|\\.|%(?!2[36]))*""")
_SECRET = re.compile(
    r"(?:.*(?:token|secret|passw|passphrase|credential|signature|session|sessid|accesskey|authoriz|bearer|jwt)|auth$|"
    r"(?:auth|access|login|reset|verification|mfa|sms)?code$|(?:connect)?sid$|sig$|sas$|hmac|pwd$|.*passcode$|otp$|"
    r".*(?<!com)(?<!by)pass$|(?:user)?pw$|.*key$).*"
)


def mask_url(text: str) -> str:
    """Hide the secrets of every URL in `text`: `user:password@`, and query values whose names look secret (F62).

    What is no URL stays as it is; when in doubt, more is hidden rather than less.
    """
    if "://" in text and "@" in text:
        text = _CREDENTIALS.sub(MASK + "@", text)
    if "=" not in text and "%3" not in text:
        return text
    kept: list[str] = []
    done = 0
    for found in _PARAMETER.finditer(text):
        if found.start() >= done and _looks_secret(found[1]):
            value = (_VALUE if found[2] == "=" else _VALUE_INSIDE).match(text, found.end())
            if value is not None and value[0]:
                kept += (text[done : found.end()], MASK)
                done = value.end()
    return "".join(kept) + text[done:] if kept else text


@lru_cache(maxsize=1024)  # the names of a site's parameters are few
def _looks_secret(name: str) -> bool:
    name = re.sub(r"[-_.\[\]\s]", "", unquote(name).lower())
    return _SECRET.fullmatch(name) is not None


_STRING = r'"(?:[^"\\]|\\.)*"'
_HEADER = r"(?:proxy[-_]?)?authorization|(?:set[-_]?)?cookie"
# A member of an object, or a pair in a list; then the same inside a text, as in the repr of headers. No word boundary
# is asked for there: in JSON a line end before the name is a backslash and an n.
_MEMBER = re.compile(
    rf'("(?:{_HEADER})")(?:(:)(?:{_STRING}|\[(?:{_STRING}|[^\]"])*\]|\{{(?:{_STRING}|[^}}"])*\}}|[^",\[{{}}\]]+)|(,){_STRING})',
    re.I,
)
_MENTION = re.compile(
    rf"""({_HEADER})((?:'|\\")?\s*[:=]\s*|(?:'|\\")\s*,\s*)(?:b?'(?:[^'"\\]|\\.)*'|b?\\"(?:[^"\\])*\\"|(?:[^"\\]|\\[^nr])+)""",
    re.I,
)


def mask_line(line: str) -> str:
    """Hide the secrets in one line of JSON, which stays JSON."""
    if "://" in line or "?" in line:
        line = mask_url(line)
    lower = line.lower()
    if "authorization" in lower or "cookie" in lower:
        line = _MEMBER.sub(lambda found: f'{found[1]}{found[2] or found[3]}"{MASK}"', line)
        line = _MENTION.sub(rf"\1\2{MASK}", line)
    return line
