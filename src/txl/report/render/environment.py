"""The templates of reports, with the escaping of each format."""

import json
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup


def template(name: str, escape: Callable[[str], str], **syntax: str) -> Template:
    """Return a template that passes every inserted value, except `Markup`, through `escape`."""
    environment = Environment(
        loader=PackageLoader("txl.report.render"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else Markup(escape(str(value))),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **syntax,  # type: ignore[arg-type]  # all of them are strings
    )
    return environment.get_template(name)


def script_json(value: Any, **options: Any) -> Markup:
    """Return JSON for a script element; no text in it can close the element."""
    return Markup(json.dumps(value, **options).replace("<", "\\u003c"))
