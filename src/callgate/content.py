"""Content that tools return beside JSON: text, images, audio, files and links. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.tools.content import Audio as Audio
    from callgate.tools.content import Content as Content
    from callgate.tools.content import File as File
    from callgate.tools.content import Image as Image
    from callgate.tools.content import Omitted as Omitted
    from callgate.tools.content import ResourceLink as ResourceLink
    from callgate.tools.content import Text as Text
    from callgate.tools.content import from_json as from_json
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Audio": "callgate.tools.content",
            "Content": "callgate.tools.content",
            "File": "callgate.tools.content",
            "Image": "callgate.tools.content",
            "Omitted": "callgate.tools.content",
            "ResourceLink": "callgate.tools.content",
            "Text": "callgate.tools.content",
            "from_json": "callgate.tools.content",
        },
    )
