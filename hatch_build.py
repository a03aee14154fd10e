"""Make the links of README.md absolute in the long description, which an index shows without the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"(!\[[^]]*\]\()(?!https?:)")
LINK = re.compile(r"(?<!!)(\[[^]]*\]\()(?!https?:|#)")
COMMENT = re.compile(r"<!-- .*? -->\n")


def absolute(text: str, source: str, version: str) -> str:
    """Return a README with links to the files of a version; comments are left out.

    Examples:
        >>> absolute("[more](docs/a.md#b), ![drawn](c.svg)", "https://github.com/me/it", "1.0")
        '[more](https://github.com/me/it/blob/v1.0/docs/a.md#b), ![drawn](https://github.com/me/it/raw/v1.0/c.svg)'
    """
    text = PICTURE.sub(rf"\1{source}/raw/v{version}/", COMMENT.sub("", text))
    return LINK.sub(rf"\1{source}/blob/v{version}/", text)


class LongDescription(MetadataHookInterface):
    """The hook that hatchling calls when it builds the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata["urls"]["Source"]
        made = absolute(text, source, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": made}
