"""Writes the .npz files of this folder with NumPy and ml_dtypes; only needed to make them anew."""

from pathlib import Path

import ml_dtypes
import numpy as np

HERE = Path(__file__).parent
NATIVE = {
    "pred": "bool", "s8": "int8", "s16": "int16", "s32": "int32", "s64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f16": "float16", "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128",
}
RAW = {
    "s1": ml_dtypes.int1, "s2": ml_dtypes.int2, "s4": ml_dtypes.int4,
    "u1": ml_dtypes.uint1, "u2": ml_dtypes.uint2, "u4": ml_dtypes.uint4,
    "f4e2m1fn": ml_dtypes.float4_e2m1fn, "f6e2m3fn": ml_dtypes.float6_e2m3fn, "f6e3m2fn": ml_dtypes.float6_e3m2fn,
    "f8e3m4": ml_dtypes.float8_e3m4, "f8e4m3": ml_dtypes.float8_e4m3, "f8e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "f8e8m0fnu": ml_dtypes.float8_e8m0fnu, "bf16": ml_dtypes.bfloat16,
}


def counted(dtype):
    """0 to 3 in turn, for one-bit types 0 and 1 (s1 makes -1 of 1, s2 wraps too, float8_e8m0fnu has no 0)."""
    return (np.arange(24).reshape(2, 3, 4) % (2 if dtype in ("bool", ml_dtypes.int1, ml_dtypes.uint1) else 4)).astype(dtype)


arrays = {name: counted(dtype) for name, dtype in (NATIVE | RAW).items()}
np.savez(HERE / "types.npz", **arrays)
np.savez_compressed(HERE / "fortran.npz", **{name: np.asfortranarray(a) for name, a in arrays.items()})
big = {name: np.asfortranarray(arrays[name].astype(np.dtype(d).newbyteorder(">"))) for name, d in NATIVE.items()}
np.savez(HERE / "big_endian.npz", **big)
np.savez(HERE / "shapes.npz", scalar=np.float32(3.5), empty=np.zeros((3, 0, 2), "f4"), **{"name with / and ü": np.ones(1)})
np.save(HERE / "bf16.npy", np.array([1, 2, 3], ml_dtypes.bfloat16))
patterns = np.arange(256, dtype="u1")
np.savez_compressed(
    HERE / "narrow_values.npz",
    **{n: patterns.view(d).astype("f4") for n, d in RAW.items() if n.startswith("f8")},
    **{n: (patterns & (2 ** int(n[1]) - 1)).view(d).astype("f4") for n, d in RAW.items() if n[:2] in ("f4", "f6")},
)
