"""What a thing that was found out about a model, and kept, depends on."""

import hashlib
import importlib.metadata
from pathlib import Path

SOURCES = Path(__file__).parent
LIBRARIES = ("torch", "transformers", "safetensors", "numpy")


def state_of(folder: Path, kernels: str) -> str:
    """A digest of a model's folder as it lies there, of this code, its libraries and its kernels.

    Args:
        kernels: name of the kernels' library, which depends on their sources and the processor.
    """
    digest = hashlib.sha256(kernels.encode())
    for library in LIBRARIES:
        digest.update(f"{library} {importlib.metadata.version(library)}\n".encode())
    for source in sorted(SOURCES.rglob("*.py")):
        digest.update(source.read_bytes())
    for path in sorted(folder.rglob("*")):
        status = path.stat()
        # Weights are too large to be read for this. Nobody can set a file's ctime.
        seen = (path.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        digest.update(repr(seen).encode())
    return digest.hexdigest()
