"""Content blocks for tests: one of each kind, and hypothesis strategies of all."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from callgate.content import Audio, Content, File, Image, Omitted, ResourceLink, Text

PNG = b"\x89PNG\r\n\x1a\n\x00\xff"
WAV = b"RIFF\x00\xff\xfeWAVE"
PDF = b"%PDF-1.7\n\xe2\xe3\xcf\xd3"
BLOCKS: dict[str, Content] = {
    "text": Text("hello"),
    "image": Image(PNG, "image/png"),
    "other image": Image(PNG, "image/tiff", name="scan.tiff"),
    "audio": Audio(WAV, "audio/wav"),
    "pdf": File(PDF, "application/pdf", name="a.pdf"),
    "text file": File(b"a;b\n1;2\n", "text/csv", name="a.csv", uri="https://files.example/a.csv"),
    "file": File(b"\x00\xff", name="a.bin"),
    "link": ResourceLink("https://files.example/a.pdf", "a.pdf", "application/pdf", description="The bill", size=9),
}
"""One block of each kind that a tool returns."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.none() | texts
blocks: st.SearchStrategy[Any] = st.one_of(
    st.builds(Text, texts),
    st.builds(Image, st.binary(max_size=40), st.sampled_from(["image/png", "image/svg+xml"]), names),
    st.builds(Audio, st.binary(max_size=40), st.sampled_from(["audio/wav", "audio/L16; rate=8000"]), names),
    st.builds(File, st.binary(max_size=40), st.sampled_from(["application/pdf", "text/csv"]), names, names),
    st.builds(ResourceLink, texts, texts, st.none() | st.just("text/csv"), names, names, st.none() | st.integers(0, 9)),
    st.builds(Omitted, st.just("image"), st.just("image/png"), st.integers(0, 9), texts, names, names),
)
