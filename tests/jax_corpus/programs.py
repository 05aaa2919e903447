"""The programs of the corpus: small functions of JAX, one list per family of operations.

A program is a function and the shapes of its arguments; the arguments' values are made by the test that runs it:
integers in 0..16, floats and both parts of complex numbers in [0, 1).
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P


@dataclass
class Program:
    """A function to be lowered, by GSPMD's or Shardy's rules where it is sharded."""

    name: str
    fn: Callable
    args: tuple
    mesh: Mesh | None = None
    in_specs: tuple | None = None
    out_specs: object = None
    shardy: bool = True
    donate: tuple = ()
    # What keeps the program from being run by the CPU plugin; empty where nothing does.
    not_run: str = ""

    @property
    def partitions(self):
        return self.mesh.devices.size if self.mesh else 1

    def jit(self):
        named = lambda specs: jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec), specs, is_leaf=lambda spec: isinstance(spec, P)
        )
        shardings = {}
        if self.in_specs is not None:
            shardings["in_shardings"] = named(self.in_specs)
        if self.out_specs is not None:
            shardings["out_shardings"] = named(self.out_specs)
        return jax.jit(self.fn, donate_argnums=self.donate, keep_unused=True, **shardings)


@dataclass
class Corpus:
    programs: list = field(default_factory=list)
    family: str = ""

    def __call__(self, name, fn, *args, **options):
        self.programs.append(Program(f"{self.family}/{name}", fn, args, **options))


def shape(dtype):
    return lambda *dims: jax.ShapeDtypeStruct(dims, dtype)


f32, f64, f16, bf16 = shape(jnp.float32), shape(jnp.float64), shape(jnp.float16), shape(jnp.bfloat16)
s8, s32, s64 = shape(jnp.int8), shape(jnp.int32), shape(jnp.int64)
u8, u32, u64 = shape(jnp.uint8), shape(jnp.uint32), shape(jnp.uint64)
c64, c128, pred = shape(jnp.complex64), shape(jnp.complex128), shape(jnp.bool_)

# Why some programs are not run.
PYTHON = "calls Python"

FLOATS = "float16 bfloat16 float32 float64"
NARROW_FLOATS = (
    "float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu float4_e2m1fn"
)
INTEGERS = "int2 int4 int8 int16 int32 int64 uint2 uint4 uint8 uint16 uint32 uint64"


def elementwise(add):
    add.family = "unary"
    for name in (
        "abs acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc erf_inv exp exp2 expm1 floor is_finite lgamma "
        "digamma log log1p logistic neg rsqrt sign sin sinh sqrt square tan tanh bessel_i0e bessel_i1e"
    ).split():
        add(name, getattr(lax, name), f32(5))
    for mode in lax.RoundingMethod:
        add(f"round_{mode.name.lower()}", partial(lax.round, rounding_method=mode), f64(6))
    for name in "abs exp log sin tanh sqrt sign log1p expm1 neg conj real imag".split():
        add(f"complex_{name}", getattr(lax, name), c64(4))
    add("accuracy", lambda x: lax.exp(x, accuracy=lax.Tolerance(atol=0, rtol=0, ulps=1)), f32(4), not_run="no such accuracy on CPU")
    add("accuracy_mode", lambda x: lax.tanh(x, accuracy=lax.AccuracyMode.HIGHEST), f32(4), not_run="no such accuracy on CPU")

    add.family = "binary"
    for name in "add sub mul div rem pow max min atan2 nextafter igamma".split():
        add(name, getattr(lax, name), f32(4), f32(4))
    for name in "eq ne lt le gt ge".split():
        add(name, getattr(lax, name), f32(2, 3), f32(2, 3))
    add("integer_pow", lambda x: (x**2, x**-3, lax.integer_pow(x, 7)), f32(4))
    add("complex", lambda a, b: (a + b, a * b, a / b, a**b, a == b), c128(3), c128(3))
    add("compare_mixed", lambda a, b, c: (a < b, b >= c, a != c), s32(3), u8(3), bf16(3))
    add("clamp", lambda a: (lax.clamp(jnp.float32(0.2), a, jnp.float32(0.7)), jnp.clip(a, 0.1)), f32(5))
    add("select", lambda p, a, b: (lax.select(p, a, b), lax.select_n(a > b, b, a)), pred(4), f32(4), f32(4))
    add("select_n", lambda i, a: lax.select_n(i % 3, a, a + 1, a * 2), s32(4), f32(4))
    add("zeta", lambda a, b: (lax.zeta(a + 2, b + 1), lax.polygamma(a + 1, b + 1)), f32(3), f32(3))
    add("betainc", lambda a, b, x: lax.betainc(a + 1, b + 1, x), f32(3), f32(3), f32(3))

    add.family = "bits"
    add("logic", lambda a, b: (a & b, a | b, a ^ b, ~a), s32(4), s32(4))
    add("pred", lambda a, b: (a & b, a | b, a ^ b, ~a), pred(4), pred(4))
    for name in "shift_left shift_right_arithmetic shift_right_logical".split():
        add(name, getattr(lax, name), s8(4), s8(4))
    add("count", lambda a: (lax.population_count(a), lax.clz(a)), u32(4))
    add("divide", lambda a, b: (a // (b + 1), a % (b + 1), jnp.divmod(a, b + 1)), s64(4), s64(4))
    add("bitcast", lambda a: lax.bitcast_convert_type(a, jnp.int32), f32(4))
    add("bitcast_narrow", lambda a: lax.bitcast_convert_type(a, jnp.uint8), f32(4))
    add("bitcast_wide", lambda a: lax.bitcast_convert_type(a, jnp.float64), u8(3, 8))
    add("packbits", lambda a: (jnp.packbits(a), jnp.unpackbits(a)), u8(9))
    add("reduce_precision", lambda a: lax.reduce_precision(a, 5, 3), f32(6))


def constant_of(dtype):
    """A constant with what is special about its type: limits, signed zeros, NaNs and their payloads."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return np.array([[True, False, True]])
    if jnp.issubdtype(dtype, np.integer):
        info = jnp.iinfo(dtype)
        return np.array([[info.min, 0, 1, info.max]]).astype(dtype)
    if jnp.issubdtype(dtype, np.complexfloating):
        return np.array([[1 - 2j, complex(np.nan, -0.0), complex(-np.inf, 1e-40), 0]], dtype)
    info = ml_dtypes.finfo(dtype)
    values = [float(info.max), float(info.smallest_normal), 1.0]
    values += [] if dtype.name == "float8_e8m0fnu" else [0.0, -1.5, -float(info.max), float(info.smallest_subnormal)]
    values += [] if dtype.name == "float4_e2m1fn" else [np.nan, -np.nan]
    values += [np.inf, -np.inf, -0.0] if dtype.name in FLOATS or dtype.name in ("float8_e5m2", "float8_e4m3") else []
    return np.array([values]).astype(dtype)


def dtypes(add):
    add.family = "dtype"
    every = f"bool {INTEGERS} {NARROW_FLOATS} {FLOATS} complex64 complex128".split()
    for name in every:
        dtype = jnp.dtype(name)
        literal = constant_of(dtype)
        add(f"constant_{name}", lambda literal=literal: (jnp.asarray(literal), jnp.zeros((2, 0), literal.dtype)))
        add(f"convert_{name}", lambda a, dtype=dtype: (a.astype(dtype), a.astype(dtype).astype(jnp.float32)), f32(5))
    for name in f"{INTEGERS} {NARROW_FLOATS} {FLOATS} complex64".split():
        add(f"arithmetic_{name}", lambda a, b: (a + b, a * b, -a), shape(jnp.dtype(name))(2, 3), shape(jnp.dtype(name))(2, 3))
    for name in "int8 uint16 int64 bfloat16 float16 float64 complex128".split():
        dtype = jnp.dtype(name)
        add(f"sum_{name}", lambda a: (a.sum(0), jnp.cumsum(a, 1), a @ a.T), shape(dtype)(3, 4))
    add("nan_payloads", lambda: jnp.asarray(np.array([0x7FC00001, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)))
    add("nan_payloads_f16", lambda: jnp.asarray(np.array([0x7E01, 0xFE00, 0x7C01], np.uint16).view(np.float16)))
    add("nan_payloads_f64", lambda: jnp.asarray(np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)))
    add("subnormals", lambda: (jnp.float32(1e-45), jnp.float64(5e-324), jnp.float16(6e-8), jnp.bfloat16(9.2e-41)))
    add("decimals", lambda: jnp.asarray(np.array([0.1, 1 / 3, 2.5e-7, 123456789.123, 1e16, 1e-5], np.float64)))
    add("scalars", lambda: (True, jnp.int32(-7), jnp.uint8(255), jnp.float32(0.5), jnp.complex64(1 + 2j)))
    add("large_constant", lambda a: a + np.arange(600, dtype=np.float32).reshape(20, 30), f32(20, 30))
    add("large_mask", lambda a: jnp.where(np.arange(300).reshape(3, 100) % 3 == 0, a, 0), f32(3, 100))
    add("splat", lambda a: a * np.full((40, 40), 3, np.float32), f32(40, 40))
    add("rank_5", lambda a: a + np.arange(24, dtype=np.int32).reshape(1, 2, 3, 2, 2), s32(1, 2, 3, 2, 2))
    add("empty", lambda a: (a + 1, a.sum(0), jnp.concatenate([a, a])), f32(0, 3))


def shapes(add):
    add.family = "shape"
    add("transpose", lambda a: (a.T, jnp.transpose(a, (1, 0, 2)), jnp.swapaxes(a, 0, 2)), f32(2, 3, 4))
    add("reshape", lambda a: (a.reshape(-1), a.reshape(4, 6), a[None], jnp.squeeze(a[None], 0)), f32(2, 3, 4))
    add("broadcast", lambda a: (jnp.broadcast_to(a, (4, 3)), lax.broadcast(a, (2,)), lax.broadcast_in_dim(a, (3, 5), (0,))), f32(3))
    add("concatenate", lambda a, b: (jnp.concatenate([a, b], 1), jnp.stack([a, a], 1), jnp.hstack([a, b])), f32(2, 3), f32(2, 1))
    add("pad", lambda a: (lax.pad(a, jnp.float32(9), ((1, 2, 0), (0, 0, 1))), lax.pad(a, jnp.float32(0), ((-1, 0, 0), (2, -1, 2)))), f32(3, 4))
    for mode in "edge reflect symmetric wrap linear_ramp maximum".split():
        add(f"pad_{mode}", lambda a, mode=mode: jnp.pad(a, ((1, 2), (2, 1)), mode), f32(3, 4))
    add("slice", lambda a: (a[1:], a[::2, 1:3], lax.slice(a, (0, 1), (4, 5), (3, 2)), a[-1]), f32(5, 6))
    add("reverse", lambda a: (a[::-1], lax.rev(a, (0, 1)), jnp.flip(a, 1)), f32(3, 4))
    add("iota", lambda: (jnp.arange(5), lax.broadcasted_iota(jnp.int8, (2, 3), 1), jnp.eye(3), jnp.tri(4, k=1), lax.iota(jnp.bfloat16, 4)))
    add("linspace", lambda a, b: (jnp.linspace(a, b, 5), jnp.logspace(a, b, 3)), f32(), f32())
    add("split", lambda a: (jnp.split(a, 3, 1), lax.split(a, (1, 3), 0)), f32(4, 6))
    add("tile", lambda a: (jnp.tile(a, (2, 2)), jnp.repeat(a, 3, 0), jnp.roll(a, 2, 1), jnp.rot90(a)), f32(2, 3))
    add("diagonal", lambda a: (jnp.diag(a), jnp.diagonal(a, 1), jnp.trace(a), jnp.tril(a), jnp.triu(a, 1)), f32(4, 4))
    add("meshgrid", lambda a, b: jnp.meshgrid(a, b, indexing="ij"), f32(3), s32(2))
    add("where", lambda a: (jnp.where(a > 0.5, a, -1), jnp.nonzero(a > 0.5, size=4), jnp.unique(a, size=6)), f32(6))
    add("collapse", lambda a: (lax.collapse(a, 1), lax.expand_dims(a, (0, 2))), f32(2, 3, 2))


def indexing(add):
    add.family = "gather"
    modes = ("promise_in_bounds", "clip", "fill")
    for mode in modes:
        add(f"at_{mode}", lambda a, i, mode=mode: a.at[i].get(mode=mode), f32(6, 3), s32(4))
    add("fill_value", lambda a, i: a.at[i].get(mode="fill", fill_value=-3), s32(6), s32(5))
    add("negative", lambda a, i: (a[i - 3], a[-1], a[i, 0]), f32(6, 3), s32(4))
    add("columns", lambda a, i: (a[:, i], a[i[:, None], i[None]]), f32(6, 6), s32(4))
    add("sorted", lambda a, i: a.at[jnp.sort(i)].get(indices_are_sorted=True, unique_indices=True), f32(16), s32(3))
    add("take", lambda a, i: (jnp.take(a, i, 1), jnp.take_along_axis(a, i[:, None], 1)), f32(4, 5), s32(4))
    add("batched", jax.vmap(lambda a, i: a[i]), f32(3, 6, 2), s32(3, 4))
    add("batched_columns", jax.vmap(lambda a, i: a[:, i], in_axes=(1, 0)), f32(4, 3, 6), s32(3))
    add("boolean", lambda a, p: jnp.where(p, a, 0)[jnp.argmax(p)], f32(5), pred(5))
    add("dynamic_slice", lambda a, i, j: lax.dynamic_slice(a, (i, j), (2, 3)), f32(6, 6), u8(), u8())
    add("dynamic_index", lambda a, i: (lax.dynamic_index_in_dim(a, i, 1), lax.dynamic_slice_in_dim(a, i, 2)), f32(6, 4), s64())
    add("narrow_index", lambda a, i: a[i], f32(200), u8(4))
    add("grad", jax.grad(lambda a, i: (a[i] ** 2).sum()), f32(6, 2), s32(4))

    add.family = "scatter"
    for name in "set add subtract multiply divide min max power".split():
        add(name, lambda a, i, u, name=name: getattr(a.at[i], name)(u), f32(16, 3), s32(4), f32(4, 3))
    for mode in modes[:2] + ("drop",):
        add(f"at_{mode}", lambda a, i, u, mode=mode: a.at[i].add(u, mode=mode), f32(16), s32(4), f32(4))
    add("apply", lambda a, i: a.at[i].apply(jnp.sin), f32(16), s32(4))
    add("unique", lambda a, u: a.at[jnp.array([0, 2, 5])].set(u, unique_indices=True, indices_are_sorted=True), f32(6), f32(3))
    add("columns", lambda a, i, u: a.at[:, i].set(u), f32(3, 16), s32(4), f32(3, 4))
    add("batched", jax.vmap(lambda a, i, u: a.at[i].max(u)), f32(3, 16), s32(3, 4), f32(3, 4))
    add("window", lambda a, u: a.at[1:3, 2:4].add(u), f32(4, 5), f32(2, 2))
    add("integers", lambda a, i: (a.at[i].add(1), jnp.bincount(i, length=16)), s32(16), s32(8))
    add("dynamic_update_slice", lambda a, u, i: lax.dynamic_update_slice(a, u, (i, i * 0)), f32(6, 4), f32(2, 4), s32())
    add("segment_sum", lambda a, i: jax.ops.segment_sum(a, i, 16), f32(8, 2), s32(8))
    add("segment_max", lambda a, i: jax.ops.segment_max(a, i, 16, indices_are_sorted=False), f32(8), s32(8))
    add("grad", jax.grad(lambda u, a, i: (a.at[i].set(u, mode="drop") ** 3).sum(), (0, 1)), f32(4), f32(16), s32(4))


def reductions(add):
    add.family = "reduce"
    for name in "sum prod max min any all argmax argmin mean var std median ptp count_nonzero".split():
        add(name, lambda a, name=name: (getattr(jnp, name)(a, axis=0), getattr(jnp, name)(a)), f32(4, 3))
    add("nan", lambda a: (jnp.nansum(a), jnp.nanmax(a, 0), jnp.nanargmin(a), jnp.nanmean(a)), f32(4, 3))
    add("bitwise", lambda a: (lax.reduce_and(a, (0,)), lax.reduce_or(a, (1,)), lax.reduce_xor(a, (0, 1))), s32(4, 3))
    add("variadic", lambda a: lax.reduce((a, a), (jnp.float32(0), jnp.float32(1)), lambda x, y: (x[0] + y[0], x[1] * y[1]), (0,)), f32(4, 3))
    add("custom", lambda a: lax.reduce(a, jnp.float32(0), lambda x, y: jnp.maximum(x, y) * 0.5, (0, 1)), f32(4, 3))
    add("logsumexp", lambda a: (jax.nn.logsumexp(a, 1), jax.nn.softmax(a), jax.nn.log_softmax(a, 0)), f32(4, 3))
    add("norms", lambda a: (jnp.linalg.norm(a), jnp.linalg.norm(a, 1), jnp.linalg.norm(a, jnp.inf, 0)), f32(4, 3))
    add("histogram", lambda a: jnp.histogram(a, 4, (0, 1)), f32(20))
    add("weighted", lambda a, w: (jnp.average(a, 0, w), jnp.cov(a), jnp.corrcoef(a)), f32(3, 4), f32(3))

    add.family = "window"
    for name in "cumsum cumprod cummax cummin cumlogsumexp".split():
        add(name, lambda a, name=name: (getattr(lax, name)(a, 0), getattr(lax, name)(a, 1, reverse=True)), f32(5, 4))
    add("sum", lambda a: lax.reduce_window(a, jnp.float32(0), lax.add, (2, 3), (1, 2), "VALID"), f32(6, 7))
    add("max_same", lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (3, 3), (2, 2), "SAME"), f32(6, 7))
    add("dilated", lambda a: lax.reduce_window(a, jnp.float32(0), lax.add, (2, 2), (1, 1), ((1, 0), (0, 2)), (2, 1), (1, 2)), f32(5, 6))
    add("negative_padding", lambda a: lax.reduce_window(a, jnp.float32(0), lax.add, (2,), (1,), ((-1, -1),)), f32(8))
    add("variadic", lambda a, i: lax.reduce_window((a, i), (jnp.float32(-jnp.inf), jnp.int32(0)), lambda x, y: (lax.max(x[0], y[0]), lax.max(x[1], y[1])), (2,), (2,), "VALID"), f32(8), s32(8))
    add("max_pool_grad", jax.grad(lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum()), f32(4, 6))
    add("avg_pool_grad", jax.grad(lambda a: (lax.reduce_window(a, 0.0, lax.add, (2, 2), (1, 1), "SAME") ** 2).sum()), f32(4, 6))
    add("scan_sum", lambda a: lax.associative_scan(jnp.add, a), f32(7))
    add("scan_pairs", lambda a: lax.associative_scan(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (a, a)), f32(6, 2))
    add("ufunc", lambda a: (jnp.add.reduce(a), jnp.multiply.accumulate(a), jnp.add.outer(a[0], a[1])), f32(3, 4))

    add.family = "sort"
    add("sort", lambda a: (jnp.sort(a), jnp.sort(a, 0, descending=True)), f32(4, 5))
    add("argsort", lambda a: (jnp.argsort(a), jnp.argsort(a, stable=False, descending=True)), s32(6))
    add("keys", lambda a, b, c: lax.sort((a, b, c), num_keys=2), s32(6), f32(6), s8(6))
    add("unstable", lambda a: lax.sort(a, is_stable=False), u32(6))
    add("lexsort", lambda a, b: jnp.lexsort((a, b)), s32(6), s32(6))
    for dtype in ("bfloat16", "bool", "complex64", "uint8"):
        add(f"sort_{dtype}", jnp.sort, shape(jnp.dtype(dtype))(7))
    add("top_k", lambda a: lax.top_k(a, 3), f32(2, 8))
    add("top_k_integers", lambda a: lax.top_k(a, 2), s32(8))
    add("approx_max_k", lambda a: lax.approx_max_k(a, 2), f32(2, 16))
    add("approx_min_k", lambda a: lax.approx_min_k(a, 2, recall_target=0.8), f32(16))
    add("median", lambda a: (jnp.median(a), jnp.quantile(a, 0.3), jnp.percentile(a, jnp.array([10, 90]), 0)), f32(5, 4))
    add("search", lambda a, v: (jnp.searchsorted(jnp.sort(a), v), jnp.digitize(v, jnp.sort(a))), f32(8), f32(3))
    add("partition", lambda a: jnp.partition(a, 3), f32(8))
    add("grad", jax.grad(lambda a: (jnp.sort(a) * jnp.arange(6)).sum()), f32(6))


def products(add):
    add.family = "dot"
    add("vectors", jnp.dot, f32(5), f32(5))
    add("matrix_vector", jnp.matmul, f32(3, 5), f32(5))
    add("matrices", jnp.matmul, f32(3, 5), f32(5, 4))
    add("batched", jnp.matmul, f32(2, 3, 5), f32(2, 5, 4))
    add("contract_two", lambda a, b: lax.dot_general(a, b, (((1, 2), (0, 1)), ((), ()))), f32(2, 3, 4), f32(3, 4, 5))
    add("batch_last", lambda a, b: lax.dot_general(a, b, (((0,), (1,)), ((2,), (0,)))), f32(3, 4, 2), f32(2, 3, 5))
    for name in ("ij,jk->ik", "bij,bkj->bik", "ii->i", "ij,ij->", "i,j->ij", "abc,cd,db->a"):
        operands = [f32(*(4,) * len(part)) for part in name.split("->")[0].split(",")]
        add("einsum_" + "".join(c if c.isalpha() else "_" for c in name), partial(jnp.einsum, name), *operands)
    for precision in ("high", "highest", "bfloat16"):
        add(f"precision_{precision}", partial(jnp.dot, precision=precision), f32(3, 4), f32(4, 3))
    for preset in (lax.DotAlgorithmPreset.BF16_BF16_F32, lax.DotAlgorithmPreset.F32_F32_F32):
        reason = "" if preset == lax.DotAlgorithmPreset.F32_F32_F32 else "no such algorithm on CPU"
        add(f"algorithm_{preset.name.lower()}", lambda a, b, preset=preset: lax.dot(a, b, precision=preset), f32(3, 4), f32(4, 3), not_run=reason)
    add("preferred_type", lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32), s8(3, 4), s8(4, 3))
    add("mixed_types", lambda a, b: lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32), bf16(3, 4), f32(4, 3))
    add("float8", lambda a, b: lax.dot(a.astype(jnp.float8_e4m3fn), b.astype(jnp.float8_e4m3fn), preferred_element_type=jnp.float32), f32(3, 4), f32(4, 3))
    add("complex", jnp.matmul, c64(3, 4), c64(4, 2))
    add("tensordot", lambda a, b: (jnp.tensordot(a, b, 1), jnp.kron(a, b), jnp.outer(a[0], b[0])), f32(3, 3), f32(3, 3))
    add("cross", lambda a, b: (jnp.cross(a, b), jnp.vdot(a, b), jnp.inner(a, b)), f32(2, 3), f32(2, 3))
    add("ragged", lambda a, b, sizes: lax.ragged_dot(a, b, sizes), f32(8, 4), f32(2, 4, 3), s32(2))
    add("grad", jax.grad(lambda a, b: jnp.tanh(a @ b).sum(), (0, 1)), f32(3, 4), f32(4, 2))
    add("matrix_power", lambda a: (jnp.linalg.matrix_power(a, 5), jnp.linalg.multi_dot([a, a, a])), f32(3, 3))

    add.family = "convolution"
    nhwc = ("NHWC", "HWIO", "NHWC")
    conv = lambda **options: lambda a, k: lax.conv_general_dilated(a, k, **{"window_strides": (1, 1), "padding": "SAME", **options})
    add("nchw", conv(), f32(1, 3, 6, 6), f32(2, 3, 3, 3))
    add("nhwc", conv(dimension_numbers=nhwc), f32(1, 6, 5, 3), f32(3, 2, 3, 2))
    add("strided", conv(window_strides=(2, 3), padding=((1, 2), (0, 1)), dimension_numbers=nhwc), f32(2, 7, 8, 2), f32(3, 3, 2, 4))
    add("rhs_dilated", conv(rhs_dilation=(2, 1), padding="VALID"), f32(1, 2, 7, 6), f32(2, 2, 3, 3))
    add("lhs_dilated", conv(lhs_dilation=(2, 3), padding=((2, 1), (1, 1))), f32(1, 2, 4, 3), f32(2, 2, 3, 3))
    add("grouped", conv(feature_group_count=2), f32(1, 4, 5, 5), f32(6, 2, 3, 3))
    add("depthwise", conv(feature_group_count=4, dimension_numbers=nhwc), f32(1, 5, 5, 4), f32(3, 3, 1, 4))
    add("batch_grouped", conv(batch_group_count=2), f32(4, 3, 5, 5), f32(4, 3, 3, 3))
    add("negative_padding", conv(padding=((-1, 0), (0, -1))), f32(1, 1, 6, 6), f32(1, 1, 2, 2))
    add("one_dimension", lambda a, k: lax.conv_general_dilated(a, k, (2,), ((1, 1),)), f32(2, 3, 9), f32(4, 3, 3))
    add("three_dimensions", lambda a, k: lax.conv_general_dilated(a, k, (1, 1, 1), "VALID"), f32(1, 2, 3, 4, 4), f32(2, 2, 2, 2, 2))
    add("no_dimension", lambda a, k: lax.conv_general_dilated(a, k, (), ()), f32(2, 3), f32(4, 3))
    add("transposed", lambda a, k: lax.conv_transpose(a, k, (2, 2), "SAME"), f32(1, 4, 4, 2), f32(3, 3, 2, 3))
    add("bfloat16", conv(preferred_element_type=jnp.float32), bf16(1, 2, 5, 5), bf16(2, 2, 3, 3))
    add("integers", conv(), s32(1, 2, 4, 4), s32(2, 2, 3, 3))
    add("numpy", lambda a, k: (jnp.convolve(a, k), jnp.correlate(a, k, "same")), f32(8), f32(3))
    add("grad", jax.grad(lambda a, k: (conv()(a, k) ** 2).sum(), (0, 1)), f32(1, 2, 5, 5), f32(3, 2, 3, 3))
    add("grad_strided", jax.grad(lambda a, k: conv(window_strides=(2, 2), padding="VALID")(a, k).sum(), (0, 1)), f32(1, 2, 6, 6), f32(3, 2, 3, 3))
    add("grad_grouped", jax.grad(lambda a, k: conv(feature_group_count=2)(a, k).sum(), (0, 1)), f32(1, 4, 5, 5), f32(4, 2, 3, 3))
    add("batched_kernels", jax.vmap(conv()), f32(2, 1, 2, 4, 4), f32(2, 2, 2, 3, 3))
    add("patches", lambda a: lax.conv_general_dilated_patches(a, (2, 2), (1, 1), "VALID"), f32(1, 2, 4, 4))

    add.family = "fft"
    for name in "fft ifft fft2 ifftn hfft".split():
        add(name, getattr(jnp.fft, name), c64(4, 6))
    add("rfft", lambda a: (jnp.fft.rfft(a), jnp.fft.rfft2(a), jnp.fft.rfftn(a, axes=(0,))), f32(4, 6))
    add("irfft", lambda a: (jnp.fft.irfft(a), jnp.fft.irfft(a, 5)), c64(4, 6))
    add("double", jnp.fft.fft, c128(8))
    add("shift", lambda a: (jnp.fft.fftshift(a), jnp.fft.ifftshift(a), jnp.fft.fftfreq(8)), f32(8))
    add("grad", jax.grad(lambda a: jnp.abs(jnp.fft.rfft(a)).sum()), f32(8))


def linear_algebra(add):
    add.family = "linalg"
    for name in "cholesky qr eigh svd inv det slogdet pinv eigvalsh matrix_rank".split():
        add(name, getattr(jnp.linalg, name), f32(3, 3))
    for name in "cholesky qr eigh svd eig".split():
        add(f"{name}_c128", getattr(jnp.linalg, name), c128(2, 3, 3))
    add("solve", jnp.linalg.solve, f64(3, 3), f64(3, 2))
    add("lu", jax.scipy.linalg.lu, f32(3, 4))
    add("triangular_solve", lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True, trans=1), f32(3, 3), f32(3, 2))
    add("triangular_solve_unit", lambda a, b: lax.linalg.triangular_solve(a, b, left_side=False, unit_diagonal=True), f64(3, 3), f64(2, 3))
    add("lstsq", jnp.linalg.lstsq, f32(4, 3), f32(4))
    add("tridiagonal", lambda a, b: lax.linalg.tridiagonal_solve(a, b, a, b[:, None]), f32(5), f32(5))
    add("schur", lax.linalg.schur, f32(3, 3))
    add("hessenberg", lax.linalg.hessenberg, f32(3, 3))
    add("expm", jax.scipy.linalg.expm, f32(3, 3))
    add("grad_solve", jax.grad(lambda a, b: jnp.linalg.solve(a, b).sum(), (0, 1)), f32(3, 3), f32(3))
    add("batched_cholesky", jax.vmap(jnp.linalg.cholesky), f32(2, 3, 3))


def randomness(add):
    add.family = "random"
    key = u32(2)
    for name in "uniform normal bits exponential gumbel laplace logistic cauchy rademacher truncated_normal".split():
        arguments = {"rademacher": ((3,),), "truncated_normal": (-1.0, 1.0, (3,))}.get(name, ((3,),))
        add(name, lambda k, name=name, arguments=arguments: getattr(jax.random, name)(k, *arguments), key)
    add("randint", lambda k: jax.random.randint(k, (4,), -5, 90, jnp.int16), key)
    add("bernoulli", lambda k: jax.random.bernoulli(k, 0.3, (5,)), key)
    add("permutation", lambda k: (jax.random.permutation(k, 8), jax.random.choice(k, 9, (3,), replace=False)), key)
    add("categorical", lambda k, a: jax.random.categorical(k, a), key, f32(3, 4))
    add("split", lambda k: (jax.random.split(k, 3), jax.random.fold_in(k, 7)), key)
    add("gamma", lambda k: jax.random.gamma(k, 0.7, (2,)), key)
    add("poisson", lambda k: jax.random.poisson(k, 3.0, (2,)), key)
    for name, impl in (("threefry", "threefry2x32"), ("rbg", "rbg"), ("unsafe_rbg", "unsafe_rbg")):
        add(f"key_{name}", lambda seed, impl=impl: jax.random.normal(jax.random.key(seed, impl=impl), (3,)), s32())
    for algorithm in (lax.RandomAlgorithm.RNG_DEFAULT, lax.RandomAlgorithm.RNG_PHILOX, lax.RandomAlgorithm.RNG_THREE_FRY):
        add(f"bit_generator_{algorithm.name.lower()}", lambda k, algorithm=algorithm: lax.rng_bit_generator(k, (5,), algorithm=algorithm), u32(4))
    add("bit_generator_u64", lambda k: lax.rng_bit_generator(k, (3,), dtype=jnp.uint64), u32(4))
    add("rng_uniform", lambda a, b: lax.rng_uniform(a, b, (3,)), f32(), f32(), not_run="differs from run to run")


def control(add):
    add.family = "control"
    add("while", lambda i, a: lax.while_loop(lambda c: c[0] < 20, lambda c: (c[0] + 3, c[1] * 1.5), (i, a)), s32(), f32(3))
    add("while_batched", jax.vmap(lambda i: lax.while_loop(lambda c: c < 20, lambda c: c + 7, i)), s32(4))
    add("fori", lambda a: lax.fori_loop(0, 5, lambda i, c: c * 0.5 + i, a), f32(3))
    add("fori_unrolled", lambda a: lax.fori_loop(0, 6, lambda i, c: c + i, a, unroll=3), f32(3))
    add("fori_dynamic", lambda n, a: lax.fori_loop(0, n, lambda i, c: c.at[i % 4].add(i), a), s32(), f32(4))
    add("scan", lambda a: lax.scan(lambda c, x: (c + x, c * x), a[0], a), f32(5, 2))
    add("scan_reverse", lambda a: lax.scan(lambda c, x: (c * 0.5 + x, None), a[0], a, reverse=True), f32(5, 2))
    add("scan_tree", lambda a, b: lax.scan(lambda c, x: ({"p": c["p"] + x[0], "q": c["q"] * 2}, (x[1], c["q"])), {"p": a[0], "q": b[0]}, (a, b)), f32(4), s32(4))
    add("scan_length", lambda a: lax.scan(lambda c, _: (c + 1, c), a, None, length=4), s32())
    add("scan_nested", lambda a: lax.scan(lambda c, x: lax.scan(lambda d, y: (d + y, d), c, x), a[0, 0], a), f32(3, 4))
    add("cond", lambda p, a: lax.cond(p, lambda x: x + 1, lambda x: x * 2, a), pred(), f32(3))
    add("cond_tuple", lambda i, a: lax.cond(i > 3, lambda x: (x, 1), lambda x: (x[::-1], 2), a), s32(), f32(3))
    add("cond_nested", lambda i, a: lax.cond(i > 3, lambda x: lax.cond(i > 8, jnp.sin, jnp.cos, x), lambda x: x, a), s32(), f32(3))
    add("cond_batched", jax.vmap(lambda p, a: lax.cond(p, jnp.sin, jnp.cos, a)), pred(4), f32(4))
    add("switch", lambda i, a: lax.switch(i % 4, [jnp.sin, jnp.cos, lambda x: x * x, lambda x: -x], a), s32(), f32(3))
    add("map", lambda a: lax.map(lambda x: jnp.sort(x) * 2, a), f32(3, 4))
    add("map_batched", lambda a: lax.map(jnp.sin, a, batch_size=2), f32(5))
    add("call", lambda a: jax.jit(lambda x: x * 2)(a) + jax.jit(lambda x: x * 2)(a + 1), f32(3))
    add("call_inline", lambda a: jax.jit(lambda x: x * 2, inline=True)(a), f32(3))
    add("while_condition_calls", lambda a: lax.while_loop(lambda c: jnp.linalg.norm(c) < 50, lambda c: c * 2 + 1, a), f32(3))
    add("select_and_loop", lambda a: lax.fori_loop(0, 3, lambda i, c: lax.cond(i % 2 == 0, lambda d: d + 1, lambda d: d @ d, c), a), f32(2, 2))
    add("newton", lambda a: lax.custom_root(lambda x: x**3 - a, jnp.float32(1), lambda f, x: lax.fori_loop(0, 8, lambda _, y: y - f(y) / jax.grad(f)(y), x), lambda g, y: y / g(jnp.float32(1))), f32())
    add("platform_dependent", lambda a: lax.platform_dependent(a, cpu=jnp.sin, default=jnp.cos), f32(3))
    add("composite", lambda a: lax.composite(lambda x: x * 2, "my.double", version=2)(a), f32(3))
    add("callback", lambda a: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), jnp.float32), a), f32(3), not_run=PYTHON)
    add("debug_print", lambda a: (jax.debug.print("{}", a), a)[1], f32(3), not_run=PYTHON)
    add("io_callback", lambda a: jax.experimental.io_callback(np.sin, jax.ShapeDtypeStruct((3,), jnp.float32), a, ordered=True), f32(3), not_run=PYTHON)


@jax.custom_jvp
def smooth_abs(x):
    return jnp.sqrt(x * x + 1)


smooth_abs.defjvp(lambda primals, tangents: (smooth_abs(*primals), tangents[0] * jnp.tanh(primals[0])))


@jax.custom_vjp
def clipped(x):
    return x * 2


clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (jnp.clip(ct * x, -1, 1),))


def transforms(add):
    add.family = "grad"
    for name in "sin exp log tanh sqrt logistic erf lgamma cbrt asinh atan log1p rsqrt".split():
        add(name, jax.grad(lambda x, name=name: getattr(lax, name)(x + 1).sum()), f32(3))
    add("second", jax.grad(jax.grad(lambda x: jnp.sin(x) * x**3)), f32())
    add("jacobians", lambda x: (jax.jacfwd(jnp.cumprod)(x), jax.jacrev(jnp.cumsum)(x), jax.hessian(lambda y: (y**3).prod())(x)), f32(3))
    add("jvp", lambda x, t: jax.jvp(lambda y: jnp.sort(y) * jnp.exp(y), (x,), (t,)), f32(4), f32(4))
    add("vjp", lambda x, t: jax.vjp(lambda y: jnp.concatenate([y, y[::-1]]), x)[1](t), f32(3), f32(6))
    add("linearize", lambda x: jax.linearize(jnp.tanh, x)[1](x), f32(3))
    add("complex", jax.grad(lambda z: jnp.abs(z**2).sum(), holomorphic=False), c64(3))
    add("scan", jax.grad(lambda a: lax.scan(lambda c, x: (jnp.tanh(c * x), c), a[0], a)[0].sum()), f32(5, 2))
    add("scan_checkpointed", jax.grad(lambda a: lax.scan(jax.checkpoint(lambda c, x: (jnp.tanh(c * x), c)), a[0], a)[0].sum()), f32(5, 2))
    add("fori", jax.grad(lambda a: lax.fori_loop(0, 4, lambda i, c: jnp.sin(c) * i, a).sum()), f32(3))
    add("while_forward", lambda a: jax.jvp(lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 1.5 + 1, x), (a,), (a,)), f32(3))
    add("cond", jax.grad(lambda a, p: lax.cond(p, jnp.sin, jnp.cos, a).sum()), f32(3), pred())
    add("remat", jax.grad(lambda a: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(a).sum()), f32(3))
    add("remat_policy", jax.grad(jax.checkpoint(lambda w, x: jnp.tanh(jnp.sin(x @ w) @ w).sum(), policy=jax.checkpoint_policies.dots_saveable)), f32(3, 3), f32(2, 3))
    add("custom_jvp", lambda a: (jax.grad(smooth_abs)(a), smooth_abs(a)), f32())
    add("custom_vjp", jax.grad(lambda a: clipped(a).sum()), f32(3))
    add("stop_gradient", jax.grad(lambda a: (lax.stop_gradient(a) * a).sum()), f32(3))
    add("where", jax.grad(lambda a: jnp.where(a > 0.5, a**2, jnp.sin(a)).sum()), f32(4))
    add("max", jax.grad(lambda a: jnp.maximum(a, 0.5).sum() + a.max() + a.prod()), f32(4))

    add.family = "transform"
    add("vmap_in_axes", jax.vmap(lambda a, b: a @ b, in_axes=(0, None)), f32(3, 2, 4), f32(4, 2))
    add("vmap_nested", jax.vmap(jax.vmap(lambda a, b: jnp.dot(a, b), (0, None)), (None, 0)), f32(3, 4), f32(2, 4))
    add("vmap_collective", jax.vmap(lambda a: a - lax.pmean(a, "i"), axis_name="i"), f32(3, 2))
    add("vmap_index", jax.vmap(lambda a: a * lax.axis_index("i"), axis_name="i"), f32(4))
    add("barrier", lambda a, b: lax.optimization_barrier((a, b + 1)), f32(3), s32(2))
    add("named_scope", jax.named_scope('a "quoted" \\ {name}')(lambda a: jnp.sin(a) * 2), f32(3))
    add("named_call", jax.named_call(lambda a: jnp.sin(a), name="inner/call"), f32(3))
    add("donated", lambda a, b: (a + b, b * 2), f32(4), f32(4), donate=(0,))
    add("donated_tree", lambda t, g: jax.tree.map(lambda x, y: x - 0.1 * y, t, g), {"w": f32(3, 2), "b": f32(2)}, {"w": f32(3, 2), "b": f32(2)}, donate=(0,))
    add("donated_unused", lambda a, b: a.sum() + b, f32(4), f32(), donate=(0,))
    add("unused", lambda a, b: a * 2, f32(3), f32(5))
    add("passed_through", lambda a, b: (b, a, a), f32(3), s32(2))
    add("no_result", lambda a: (), f32(3))
    add("only_constant", lambda: jnp.float32(42))
    add("unicode_name", lambda a: jax.named_scope("größe-λ")(jnp.sin)(a), f32(3))


def networks(add):
    add.family = "network"
    mlp = lambda p, x: jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    parameters = {"w1": f32(4, 8), "b1": f32(8), "w2": f32(8, 2), "b2": f32(2)}
    loss = lambda p, x, y: ((mlp(p, x) - y) ** 2).mean()
    add("mlp_step", lambda p, x, y: jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p, x, y)), parameters, f32(5, 4), f32(5, 2), donate=(0,))
    add("mlp_loss_and_grad", jax.value_and_grad(loss), parameters, f32(5, 4), f32(5, 2))
    add("layer_norm", lambda x, g: jax.nn.standardize(x, -1) * g, f32(3, 4), f32(4))
    add("attention", lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), f32(1, 4, 2, 3), f32(1, 4, 2, 3), f32(1, 4, 2, 3))
    add("attention_grad", jax.grad(lambda q, k, v: (jax.nn.softmax(q @ k.T) @ v).sum(), (0, 1, 2)), f32(4, 3), f32(4, 3), f32(4, 3))
    for name in "relu gelu silu softplus elu selu celu leaky_relu hard_tanh soft_sign glu mish".split():
        add(name, getattr(jax.nn, name), f32(4))
    add("one_hot", lambda i: (jax.nn.one_hot(i, 5), jax.nn.one_hot(i, 3, dtype=jnp.bfloat16)), s32(3))
    add("cross_entropy", jax.grad(lambda x, i: -jnp.take_along_axis(jax.nn.log_softmax(x), i[:, None], 1).mean()), f32(3, 16), s32(3))
    add("rnn", lambda w, x: lax.scan(lambda h, v: (jnp.tanh(h @ w + v), h.sum()), jnp.zeros((2, 3), jnp.float32), x), f32(3, 3), f32(4, 2, 3))
    add("adam", lambda p, m, v, g, t: (p - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g), *[f32(4)] * 4, f32(), donate=(0, 1, 2))
    add("mixed_precision", jax.grad(lambda w, x: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32).sum()), f32(4, 2), f32(3, 4))
    add("dropout", lambda k, x: jnp.where(jax.random.bernoulli(k, 0.8, x.shape), x / 0.8, 0), u32(2), f32(3, 4))
    add("batch_norm", lambda x: (x - x.mean(0)) * lax.rsqrt(x.var(0) + 1e-5), f32(6, 3))
    add("embedding_grad", jax.grad(lambda t, i: jnp.sin(t[i]).sum()), f32(16, 3), s32(5))
    add("interpolation", lambda x, p, f: (jnp.interp(x, p, f), jnp.polyval(f, x), jax.image.resize(x.reshape(2, 3), (4, 3), "bilinear")), f32(6), f32(4), f32(4))
    add("special", lambda x: (jax.scipy.special.gammaln(x + 1), jax.scipy.special.i0(x), jax.scipy.stats.norm.logpdf(x), jax.scipy.special.erfcx(x) if hasattr(jax.scipy.special, "erfcx") else x), f32(3))


def mesh(permutation=None, **axes):
    size = int(np.prod(list(axes.values())))
    devices = np.array(jax.devices()[:size])
    devices = devices if permutation is None else devices[permutation]
    return Mesh(devices.reshape(tuple(axes.values())), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def sharded(add):
    """Global programs for the partitioner to cut, and programs written per device, for GSPMD and for Shardy."""
    meshes = {
        "line": mesh(x=8),
        "grid": mesh(x=4, y=2),
        "mixed": mesh([3, 6, 0, 5, 7, 1, 4, 2], x=2, y=4),
        "cube": mesh(x=2, y=2, z=2),
    }
    for shardy in (False, True):
        for label, the_mesh in meshes.items():
            add.family = f"{'shardy' if shardy else 'gspmd'}_{label}"
            global_view(partial(add, mesh=the_mesh, shardy=shardy), label, the_mesh)
            add.family += "_manual"
            per_device_view(partial(add, mesh=the_mesh, shardy=shardy), label, the_mesh)


def global_view(add, label, m):
    x, y, xy, none = P("x"), P("y"), P("x", "y"), P()
    last = m.axis_names[-1]
    constrain = lambda v, *spec: lax.with_sharding_constraint(v, NamedSharding(m, P(*spec)))
    add("matmul", jnp.matmul, f32(16, 8), f32(8, 16), in_specs=(x, P(None, last)), out_specs=P("x", None if last == "x" else last))
    add("contracted", lambda a, b: (a @ b).sum(0), f32(8, 16), f32(16, 8), in_specs=(P(None, "x"), x), out_specs=none)
    add("constraint", lambda a: constrain(jnp.sin(a), None, last) + a.sum(), f32(8, 16), in_specs=(x,))
    add("grad", jax.grad(lambda w, a: jnp.tanh(a @ w).sum()), f32(8, 8), f32(16, 8), in_specs=(P(None, last), x), out_specs=P(None, last))
    if label == "line":
        add("uneven", lambda a: (constrain(a * 2, "x"), constrain(a, "x").sum(0)), s32(13, 3), in_specs=(none,))
        add("sort", lambda a: (jnp.sort(a, 0), jnp.argsort(a, 1)), s32(16, 4), in_specs=(x,), out_specs=(x, x))
        add("gather", lambda a, i: a[i], s32(16, 4), s32(8), in_specs=(x, x), out_specs=x)
        add("scatter", lambda a, i, u: a.at[i].add(u), s32(16, 4), s32(8), s32(8, 4), in_specs=(x, x, x), out_specs=x)
        add("convolution", lambda a, k: lax.conv_general_dilated(a, k, (1, 1), "SAME"), f32(1, 2, 16, 4), f32(2, 2, 3, 3), in_specs=(P(None, None, "x"), none), out_specs=P(None, None, "x"))
        add("cumsum", lambda a: jnp.cumsum(a, 0), s32(16, 4), in_specs=(x,), out_specs=x)
        add("donated", lambda a, b: (a + b, b), f32(8, 2), f32(8, 2), in_specs=(x, x), out_specs=(x, x), donate=(0,))
        add("roll", lambda a: (jnp.roll(a, 3, 0), a[1:], a[::-1]), s32(16, 2), in_specs=(x,))
        add("random", lambda k: jax.random.bits(k, (16, 2)), u32(2), in_specs=(none,), out_specs=x)
        add("types", lambda a, b, c: (a.any(0), b.sum(0), c.max(0)), pred(8, 2), bf16(8, 2), u8(8, 2), in_specs=(x, x, x))
    if label == "grid":
        add("reshard", lambda a: a.T + 1, f32(8, 8), in_specs=(xy,), out_specs=xy)
        add("both_axes", lambda a: a @ a.T, f32(16, 4), in_specs=(P(("x", "y")),), out_specs=P(("y", "x")))
        add("partly_replicated", lambda a: a * a.sum(1, keepdims=True), f32(4, 8), in_specs=(y,), out_specs=y)
        add("scan", lambda w, a: lax.scan(lambda h, v: (jnp.tanh(h @ v), h.sum()), a, w), f32(3, 8, 8), f32(8, 8), in_specs=(P(None, None, "y"), x))
        add("while", lambda a: lax.while_loop(lambda c: c.sum() < 900, lambda c: c + jnp.roll(c, 1, 0) + 1, a), s32(16, 2), in_specs=(x,), out_specs=x)
        add("cond", lambda a: lax.cond(a.sum() > 0, lambda c: c @ c.T, lambda c: c[:, :1] * c[0], a), f32(8, 8), in_specs=(xy,), out_specs=x)
        add("propagated", lambda a, b: (a + 1, (a @ b, b.sum())), f32(8, 8), f32(8, 8), in_specs=(xy, none))
        add("einsum", partial(jnp.einsum, "bij,bjk->bik"), f32(4, 4, 4), f32(4, 4, 4), in_specs=(P("x", "y"), P("x")), out_specs=P("x", None, "y"))


def per_device_view(add, label, m):
    axes, last = tuple(m.axis_names), m.axis_names[-1]
    size, tail = m.shape["x"], m.shape[last]
    every = P(axes)

    def per_device(name, fn, *args, out=every):
        add(name, jax.shard_map(fn, mesh=m, in_specs=(every,) * len(args), out_specs=out, check_vma=False), *args)

    per_device("psum", lambda a: (lax.psum(a, "x"), lax.pmax(a, last), lax.pmean(a, axes)), f32(16, 2), out=(every, every, every))
    per_device("all_gather", lambda a: lax.all_gather(a, "x", axis=1, tiled=True), s32(16, 2))
    per_device("ppermute", lambda a: lax.ppermute(a, last, [(i, (i + 1) % tail) for i in range(tail)]), f32(16, 2))
    per_device("all_to_all", lambda a: lax.all_to_all(a, "x", 1, 0, tiled=True), s32(16, size))
    if label in ("line", "cube"):
        per_device("reduce_scatter", lambda a: lax.psum_scatter(a, "x", scatter_dimension=1, tiled=True), f32(16, 8))
        per_device("untiled", lambda a: (lax.all_gather(a, "x"), lax.all_to_all(a, "x", 1, 1)), s32(16, size), out=(P(None, axes), every))
        per_device("axis_index", lambda a: a + lax.axis_index("x") * 10 + lax.axis_index(axes), s32(16, 2))
        per_device("loop", lambda a: lax.fori_loop(0, 3, lambda i, c: lax.psum(c, "x") * 0.1 + i, a), f32(16, 2))
        per_device("branch", lambda a: lax.cond(lax.psum(a.sum(), axes) > 0, lambda c: lax.psum(c, "x"), lambda c: lax.pmin(c, "x"), a), f32(16, 2))
        per_device("many", lambda a: lax.psum({"a": a, "b": a.astype(jnp.int32), "c": a[:1].astype(jnp.bfloat16)}, "x"), f32(16, 2))
    if label == "line":
        per_device("groups", lambda a: lax.psum(a, "x", axis_index_groups=[[0, 3, 5, 6], [1, 2, 4, 7]]), f32(8, 2))
        per_device("grad", jax.grad(lambda a: lax.psum(jnp.sin(a).sum(), "x")), f32(8, 2))
        per_device("types", lambda a, b, c: (lax.psum(a, "x"), lax.pmin(b, "x"), lax.all_gather(c, "x")), c64(8), u8(8), pred(8), out=(every, every, P(None, "x")))
    if label == "cube":
        per_device("two_axes", lambda a: lax.psum(a, ("x", "z")) + lax.all_gather(a, ("z", "y"), tiled=True).sum(), s32(16, 2))
        add("partly_manual", jax.shard_map(lambda a: lax.psum(a, "x") * 2, mesh=m, in_specs=(P("x"),), out_specs=P(), axis_names={"x"}, check_vma=False), s32(16, 4))


def replicated(add):
    add.family = "pmap"
    add("psum", jax.pmap(lambda a: lax.psum(a, "i"), axis_name="i"), f32(8, 3), mesh=mesh(i=8))
    add("mean", jax.pmap(lambda a, b: a - lax.pmean(b, "i"), axis_name="i"), f32(8, 3), f32(8, 3), mesh=mesh(i=8))


def programs():
    add = Corpus()
    for family in (
        elementwise,
        dtypes,
        shapes,
        indexing,
        reductions,
        products,
        linear_algebra,
        randomness,
        control,
        transforms,
        networks,
        sharded,
        replicated,
    ):
        family(add)
    names = [program.name for program in add.programs]
    assert len(set(names)) == len(names), "names must differ"
    return add.programs
