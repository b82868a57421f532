"""The safetensors format on numpy, bfloat16 included: numpy has none, so that such a tensor is an Array of its bits."""
import json
import struct

import numpy as np

MAX_HEADER = 100 << 20
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}
NAMES = {name: text for text, name in DTYPES.items()}


class Array:
    """A tensor on the host: `bits`, a numpy array, and the dtype that they mean ("bfloat16": of uint16)."""

    def __init__(self, bits, dtype=None):
        self.bits = bits
        self.dtype = dtype or bits.dtype.name

    @property
    def shape(self):
        return self.bits.shape

    def numbers(self, dtype=np.float64):
        """The elements in a float dtype."""
        if self.dtype == "bfloat16":
            wide = self.bits.astype(np.uint32) << 16
            return wide.view(np.float32).astype(dtype)
        return self.bits.astype(dtype)


def bits_of(dtype):
    return np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")


def load(path):
    """name → Array. ValueError: no safetensors file."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        (length,) = struct.unpack_from("<Q", data)
        if length > min(MAX_HEADER, len(data) - 8):
            raise ValueError("header too long")
        header = json.loads(data[8:8 + length])
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
            kind = bits_of(dtype)
            count = int(np.prod(shape, dtype=np.int64))
            if not 0 <= begin <= end <= len(data) - 8 - length or end - begin != count * kind.itemsize:
                raise ValueError(f"{name} does not fit")
            bits = np.frombuffer(data, kind, count, 8 + length + begin)
            tensors[name] = Array(bits.reshape(shape), dtype)
        return tensors
    except (KeyError, TypeError, struct.error, UnicodeDecodeError, json.JSONDecodeError, ValueError) as error:
        raise ValueError(f"{path}: not a safetensors file that this reads: {error}") from None


def save(path, tensors):
    """Writes name → Array."""
    header, blocks, at = {}, [], 0
    for name, tensor in tensors.items():
        block = np.ascontiguousarray(tensor.bits, bits_of(tensor.dtype)).tobytes()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(block)]}
        blocks.append(block)
        at += len(block)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blocks))
