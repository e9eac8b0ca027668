"""The templates of reports: each format escapes all text it is given."""

import json
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def environment(escape: Callable[[str], str], **syntax: str) -> Environment:
    """Return an environment that passes every inserted value, except `Markup`, through `escape`."""

    def finalize(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(str(value)))

    return Environment(
        loader=PackageLoader("txl.report.render"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **syntax,  # type: ignore[arg-type]  # all of them are strings
    )


def script_json(value: Any, **options: Any) -> Markup:
    """Return JSON for a script element, which no text in it can close."""
    return Markup(json.dumps(value, **options).replace("<", "\\u003c"))
