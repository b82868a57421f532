"""Reads a tensor of any library through DLPack, by ctypes: numpy's own from_dlpack knows no bfloat16."""
import ctypes

import numpy as np

from .safetensors import Array

CPU = 1  # kDLCPU
KINDS = {(0, 8): "int8", (0, 32): "int32", (0, 64): "int64", (2, 16): "float16", (2, 32): "float32", (2, 64): "float64",
         (4, 16): "bfloat16"}  # (DLDataTypeCode, bits)


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def _pointer(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, b"dltensor")


def to_numpy(tensor):
    """A copy on the host, as an Array. Anything with __dlpack__, also on a GPU where it has .cpu()."""
    if isinstance(tensor, Array):
        return tensor
    if isinstance(tensor, np.ndarray):
        return Array(np.array(tensor))
    if hasattr(tensor, "detach"):
        tensor = tensor.detach()
    if hasattr(tensor, "cpu"):
        tensor = tensor.cpu()
    if not hasattr(tensor, "__dlpack__"):
        raise TypeError(f"{type(tensor).__name__} is no tensor: it has no __dlpack__")
    capsule = tensor.__dlpack__()  # its destructor gives the memory back
    view = ctypes.cast(_pointer(capsule), ctypes.POINTER(_DLTensor)).contents
    if view.device_type != CPU:
        raise TypeError("a tensor on a device must have .cpu()")
    dtype = KINDS.get((view.code, view.bits))
    if dtype is None or view.lanes != 1:
        raise TypeError(f"dtype of DLPack code {view.code} with {view.bits} bits is not one of {sorted(KINDS.values())}")
    kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    shape = [view.shape[i] for i in range(view.ndim)]
    if 0 in shape:
        return Array(np.empty(shape, kind), dtype)
    dense = [int(np.prod(shape[i + 1:], dtype=np.int64)) for i in range(view.ndim)]
    strides = [view.strides[i] for i in range(view.ndim)] if view.strides else dense
    reach = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides))
    memory = (ctypes.c_char * (reach * kind.itemsize)).from_address(view.data + view.byte_offset)
    flat = np.frombuffer(memory, kind)
    return Array(np.lib.stride_tricks.as_strided(flat, shape, [s * kind.itemsize for s in strides]).copy(), dtype)
