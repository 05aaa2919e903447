"""Writes the programs and results of this folder with JAX 0.10.2; only needed to make them anew.

    python tests/data/lapack/generate.py

Programs return what is the same for every correct implementation: factors where LAPACK's conventions fix them, else
products of the factors.
"""

import io
import pathlib
import zipfile

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax import lax
from jax._src.lax import linalg as raw
from jax.sharding import NamedSharding, PartitionSpec as P

ARCHIVE = zipfile.ZipFile(pathlib.Path(__file__).with_name("programs.zip"), "w", zipfile.ZIP_DEFLATED, compresslevel=9)


def adjoint(a):
    return jnp.swapaxes(a, -1, -2).conj()


def error(found, expected):
    """Zero but for rounding, or NaN. A mean, because XLA's maximum may drop NaN."""
    difference = jnp.abs(found - expected)
    return jnp.sum(difference) / max(difference.size, 1)


def not_unitary(q):
    return error(adjoint(q) @ q, jnp.eye(q.shape[-1], dtype=q.dtype))


def cholesky_is_nan(a):
    return [jnp.isnan(x) for x in cholesky(a)]


def lu(a):
    return lax.linalg.lu(a)


def qr(a):
    return [*jnp.linalg.qr(a), *raw.geqrf(a)]


def complete_qr(a):
    return jnp.linalg.qr(a, mode="complete")


def pivoted_qr(a):
    return jsl.qr(a, pivoting=True, mode="economic")


def ormqr(a):
    factors, taus = raw.geqrf(a)
    size = a.shape[-2]
    c = jnp.arange(size * 3).reshape(size, 3).astype(a.dtype)
    c = jnp.broadcast_to(c, (*a.shape[:-2], size, 3))
    return [
        raw.ormqr(factors, taus, c if left else adjoint(c), left=left, transpose=transpose)
        for left in (True, False)
        for transpose in (True, False)
    ]


def cholesky(a):
    a = a @ adjoint(a) + jnp.eye(a.shape[-1], dtype=a.dtype)
    return [jnp.linalg.cholesky(a), jsl.cholesky(a), jnp.linalg.cholesky(-a)]


def triangular(a):
    n = a.shape[-1]
    a = a + 3 * jnp.eye(n, dtype=a.dtype)
    b = jnp.arange(n * 2).reshape(n, 2).astype(a.dtype) + 1
    b = jnp.broadcast_to(b, (*a.shape[:-2], n, 2))
    return [
        lax.linalg.triangular_solve(
            a, b if left else adjoint(b), left_side=left, lower=lower, transpose_a=transpose > 0,
            conjugate_a=transpose > 1, unit_diagonal=(transpose == 1) == lower,
        )
        for left in (True, False)
        for lower in (True, False)
        for transpose in (0, 1, 2)
    ]


def svd(a):
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    all_u, all_s, all_vh = jnp.linalg.svd(a, full_matrices=True)
    size = s.shape[-1]
    q, by_qr, rh = lax.linalg.svd(a, full_matrices=False, algorithm=lax.linalg.SvdAlgorithm.QR)
    return [
        s, error((u * s[..., None, :]) @ vh, a), not_unitary(u), not_unitary(adjoint(vh)),
        error(all_s, s), not_unitary(all_u), not_unitary(all_vh),
        error((all_u[..., :size] * s[..., None, :]) @ all_vh[..., :size, :], a),
        error(jnp.linalg.svd(a, compute_uv=False), s), error(by_qr, s), error((q * by_qr[..., None, :]) @ rh, a),
    ]


def eigh(a):
    a = a + adjoint(a)
    out = []
    for uplo in "LU":
        triangle = jnp.tril(a) if uplo == "L" else jnp.triu(a)
        w, v = jnp.linalg.eigh(triangle, UPLO=uplo, symmetrize_input=False)
        out += [w, error((v * w[..., None, :]) @ adjoint(v), a), not_unitary(v)]
    return out


def eig(a):
    w, left, right = lax.linalg.eig(a, compute_left_eigenvectors=True)
    a = a.astype(w.dtype)
    largest = jnp.take_along_axis(right, jnp.argmax(jnp.abs(right), axis=-2, keepdims=True), axis=-2) if a.size else right
    return [
        *[jnp.sum(w**k, axis=-1) for k in (1, 2, 3)],
        error(a @ right, right * w[..., None, :]), error(adjoint(left) @ a, w[..., None] * adjoint(left)),
        error(jnp.linalg.norm(right, axis=-2), 1), error(jnp.linalg.norm(left, axis=-2), 1), error(largest.imag, 0),
        jnp.sum(jnp.linalg.eigvals(a)),
    ]


def schur(a):
    t, q = lax.linalg.schur(a)
    below = jnp.diagonal(t, offset=-1, axis1=-2, axis2=-1)
    above = jnp.diagonal(t, offset=1, axis1=-2, axis2=-1)
    diagonal = jnp.diagonal(t, axis1=-2, axis2=-1)
    return [
        error(q @ t @ adjoint(q), a), not_unitary(q), error(jnp.tril(t, -1 if jnp.iscomplexobj(a) else -2), 0),
        error(jnp.where(below != 0, diagonal[..., 1:] - diagonal[..., :-1], 0), 0),
        jnp.all(jnp.where(below != 0, (below * above).real < 0, True)), jnp.sum(below != 0, axis=-1),
    ]


def hessenberg(a):
    return [*lax.linalg.hessenberg(a), *jsl.hessenberg(a, calc_q=True)]


def tridiagonal(a):
    a = a + adjoint(a)
    return [x for lower in (True, False) for x in lax.linalg.tridiagonal(a, lower=lower)]


def tridiagonal_solve(a):
    b = a[..., :, :2]
    diagonals = [a[..., 0, :].at[..., 0].set(0), a[..., 1, :], a[..., 2, :].at[..., -1].set(0)]
    return [lax.linalg.tridiagonal_solve(*diagonals, b)]


def solve(a):
    a = a + 3 * jnp.eye(a.shape[-1], dtype=a.dtype)
    return [jnp.linalg.solve(a, a[..., :2]), jnp.linalg.inv(a), jnp.linalg.det(a)]


SQUARE = ["lu", "qr", "pivoted_qr", "ormqr", "cholesky", "triangular", "svd", "eigh", "eig", "schur", "hessenberg", "tridiagonal", "tridiagonal_solve", "solve"]
OTHER = ["lu", "qr", "complete_qr", "pivoted_qr", "svd"]
CASES = [(name, (5, 5)) for name in SQUARE]
# For one type alone, as compiling takes long.
MORE = [
    *[(name, (2, 3, 3)) for name in SQUARE if name not in ("pivoted_qr", "hessenberg", "triangular")],
    *[(name, (1, 1)) for name in SQUARE if name not in ("tridiagonal_solve", "tridiagonal", "triangular")],
    *[(name, shape) for name in OTHER for shape in ((7, 3), (3, 7))],
    *[(name, (0, 3, 3)) for name in ("lu", "qr", "svd", "eigh", "eig", "cholesky")],
    *[(name, (0, 0)) for name in ("lu", "qr", "eigh", "cholesky")],
]
# Columns that repeat and a matrix of zeros: pivots that are equal, and eliminations that end early.
SINGULAR = [("lu", "repeated"), ("svd", "repeated"), ("eigh", "repeated"), ("lu", "zeros"), ("qr", "zeros"),
            ("svd", "zeros"), ("eigh", "zeros"), ("schur", "zeros"), ("eig", "zeros"), ("lu", "ties")]
# More than one block of columns.
LARGE = ["lu", "qr", "svd", "eigh", "eig", "schur", "ormqr"]
NOT_A_NUMBER = ["svd", "eigh", "eig", "schur", "qr", "cholesky_is_nan"]


def random(rng, shape, dtype):
    a = rng.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        a = a + 1j * rng.standard_normal(shape)
    return a.astype(dtype)


def special(rng, kind, dtype):
    match kind:
        case "zeros":
            return np.zeros((3, 3), dtype)
        case "repeated":
            return np.array([[4, 2, 4, 1], [2, 5, 2, 3], [4, 2, 4, 1], [1, 3, 1, 7]], dtype)
        case "ties":
            unit = 1j if np.issubdtype(dtype, np.complexfloating) else -1
            return np.array([[1, 2, 3], [unit, 1, 1], [-1, 5, unit]], dtype)


def save_arrays(file, prefix, arrays):
    # The archive compresses them.
    np.savez(content := io.BytesIO(), **{f"{prefix}{i}": np.asarray(a) for i, a in enumerate(arrays)})
    ARCHIVE.writestr(file, content.getvalue())


def save(name, function, arguments, **options):
    lowered = jax.jit(function, **options).lower(*arguments)
    results = jax.tree.leaves(jax.jit(function, **options)(*arguments))
    save_arrays(f"{name}.in.npz", "arg", arguments)
    save_arrays(f"{name}.out.npz", "out", results)
    return lowered


def routines(name, dtype):
    rng = np.random.default_rng(7)
    shapes = CASES + MORE if name == "c128" else CASES
    cases = [(routine, random(rng, shape, dtype)) for routine, shape in shapes]
    large = random(rng, (36, 36), dtype)
    cases += [(routine, large) for routine in LARGE]
    cases += [(routine, special(rng, kind, dtype)) for routine, kind in SINGULAR]
    cases += [(routine, np.full((3, 3), np.nan, dtype)) for routine in NOT_A_NUMBER]

    def program(*arguments):
        # All large cases share one argument.
        large = next((a for a in arguments if a.shape == (36, 36)), None)
        others = iter(a for a in arguments if a.shape != (36, 36))
        return [globals()[routine](large if expected.shape == (36, 36) else next(others)) for routine, expected in cases]

    program.__name__ = f"lapack_{name}"
    lowered = save(name, program, [a for _, a in cases if a is not large] + [large])
    ARCHIVE.writestr(f"{name}.hlo.pb", lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    # Which output belongs to which routine, for a reader of a failure.
    counts = [len(jax.tree.leaves(jax.eval_shape(globals()[routine], a))) for routine, a in cases]
    lines, start = [], 0
    for (routine, a), count in zip(cases, counts):
        lines.append(f"out{start}..{start + count}\t{routine}\t{list(a.shape)}\n")
        start += count
    ARCHIVE.writestr(f"{name}.outputs.tsv", "".join(lines))


def gradients():
    """Data parallel over a batch of matrices: the routines run on every partition, their gradients are summed."""
    mesh = jax.make_mesh((4,), ("batch",))
    rng = np.random.default_rng(3)
    a = rng.standard_normal((8, 4, 4)).astype(np.float32) + 4 * np.eye(4, dtype=np.float32)
    weights = rng.standard_normal((4, 4)).astype(np.float32) / 8

    def loss(weights, a):
        a = a @ (jnp.eye(4) + weights)
        symmetric = a @ adjoint(a)
        q, r = jnp.linalg.qr(a)
        w, v = jnp.linalg.eigh(symmetric)
        u, s, vh = jnp.linalg.svd(a, full_matrices=False)
        return jnp.mean(
            jnp.sum(jnp.linalg.cholesky(symmetric), (1, 2)) + jnp.sum(jnp.linalg.solve(a, a**2), (1, 2))
            + jnp.sum(q[..., 0] * r[..., 0, :], 1) + jnp.sum(w * v[:, 0] ** 2, 1) + jnp.sum(s[:, None] * u**2 @ vh**2, (1, 2))
            + jnp.linalg.slogdet(a)[1]
        )

    options = dict(
        in_shardings=(NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))),
        out_shardings=NamedSharding(mesh, P()),
    )
    with jax.default_matmul_precision("highest"):
        jax.config.update("jax_use_shardy_partitioner", False)
        lowered = save("gradients", jax.value_and_grad(loss), [weights, a], **options)
    text = lowered.compiler_ir("hlo").as_hlo_text()
    solution = save("solve", solve, [a])
    ARCHIVE.writestr("solve.mlir", solution.as_text())
    header, rest = text.split("\n", 1)
    ARCHIVE.writestr("gradients.hlo", f"{header}, replica_count=1, num_partitions=4\n{rest}")


if __name__ == "__main__":
    for name, dtype in [("f32", np.float32), ("f64", np.float64), ("c64", np.complex64), ("c128", np.complex128)]:
        routines(name, dtype)
    gradients()
    ARCHIVE.close()
