//! Random numbers, the same as JAX's: the generator Threefry-2x32 (`jax.random` with `jax_threefry_partitionable`, its
//! default), whose numbers do not depend on how an array is sharded.
//!
//! A key is a `u32[2]`; every key is for one use: take new ones from [`split`] or [`fold_in`].
//!
//! ```
//! use spmd_run::builder::{Builder, random};
//! use spmd_run::dtype::DType::F32;
//!
//! let b = Builder::new("init");
//! let keys = random::split(random::key(&b, 42), 2);
//! let weights = random::normal(keys[0], F32, &[64, 32]) * 0.02;
//! let dropped = random::uniform(keys[1], F32, &[64, 32]).lt(0.1).select(0, weights);
//! b.build(&[dropped])?;
//! # Ok::<(), spmd_run::builder::BuildError>(())
//! ```

use super::{Builder, Op};
use crate::dtype::DType;

/// The rotations of the rounds, four and four in turn.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// The key of a seed, as `jax.random.PRNGKey`.
#[track_caller]
pub fn key(builder: &Builder, seed: u64) -> Op<'_> {
    let words = [(seed >> 32) as u32, seed as u32];
    builder.stack(&[builder.scalar(DType::U32, words[0]), builder.scalar(DType::U32, words[1])], 0)
}

/// New keys made of one, as `jax.random.split`.
#[track_caller]
pub fn split<'b>(key: Op<'b>, count: usize) -> Vec<Op<'b>> {
    let numbers = key.builder().arange(DType::U32, count as i64);
    let (first, second) = threefry(key, numbers.zeros_like(), numbers);
    let keys = key.builder().stack(&[first, second], 1);
    let mut made = Vec::with_capacity(count);
    for index in 0..count {
        made.push(keys.index(0, index as i64));
    }
    made
}

/// A new key made of one and a number, a scalar of an integer type, as `jax.random.fold_in`.
#[track_caller]
pub fn fold_in<'b>(key: Op<'b>, number: Op<'b>) -> Op<'b> {
    let number = number.convert(DType::U32);
    let (first, second) = threefry(key, number.zeros_like(), number);
    key.builder().stack(&[first, second], 0)
}

/// Random `u32` in an array of this shape, as `jax.random.bits`.
#[track_caller]
pub fn bits<'b>(key: Op<'b>, dims: &[i64]) -> Op<'b> {
    let builder = key.builder();
    let count = dims.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim));
    if count.is_none_or(|count| count > i64::from(u32::MAX)) {
        return builder.fail("random", "an array of random numbers has 2³² − 1 elements at most");
    }
    let mut places = builder.zeros(DType::U32, dims);
    let mut stride = 1i64;
    for axis in (0..dims.len()).rev() {
        places = places + builder.iota(DType::U32, dims, axis as i64) * stride;
        stride = stride.saturating_mul(dims[axis]);
    }
    let (first, second) = threefry(key, places.zeros_like(), places);
    first ^ second
}

/// Random numbers in [0, 1), all equally likely, as `jax.random.uniform`. They are made in `f32`.
#[track_caller]
pub fn uniform<'b>(key: Op<'b>, dtype: DType, dims: &[i64]) -> Op<'b> {
    unit_interval(key, dims).convert(dtype)
}

/// Random numbers of the normal distribution with mean 0 and variance 1, as `jax.random.normal`. They are made in `f32`.
#[track_caller]
pub fn normal<'b>(key: Op<'b>, dtype: DType, dims: &[i64]) -> Op<'b> {
    // The open interval (−1, 1).
    let low = (-1f32).next_up();
    let spread = (unit_interval(key, dims) * f64::from(1.0 - low) + f64::from(low)).max(low);
    (erf_inv(spread) * std::f64::consts::SQRT_2).convert(dtype)
}

/// Random `f32` in [0, 1): 23 random bits as the mantissa of a number in [1, 2).
#[track_caller]
fn unit_interval<'b>(key: Op<'b>, dims: &[i64]) -> Op<'b> {
    let mantissa = bits(key, dims).shift_right_logical(9) | i64::from(1f32.to_bits());
    (mantissa.bitcast(DType::F32) - 1.0).max(0.0)
}

/// The block cipher of Salmon and others (2011), of two words and 20 rounds.
#[track_caller]
fn threefry<'b>(key: Op<'b>, first: Op<'b>, second: Op<'b>) -> (Op<'b>, Op<'b>) {
    let key = match key.array("random") {
        Some((dtype, dims)) if dtype != DType::U32 || dims != [2] => {
            let message = format!("{} is no key: a key is a u32[2], made by key, split or fold_in", key.text());
            key.builder().fail("random", message)
        }
        _ => key,
    };
    let (key0, key1) = (key.index(0, 0), key.index(0, 1));
    let keys = [key0, key1, key0 ^ key1 ^ 0x1BD1_1BDA];
    let (mut x, mut y) = (first + keys[0], second + keys[1]);
    for round in 0..5 {
        for rotation in ROTATIONS[round % 2] {
            x = x + y;
            y = (y.shift_left(rotation) | y.shift_right_logical(32 - rotation)) ^ x;
        }
        x = x + keys[(round + 1) % 3];
        y = y + keys[(round + 2) % 3] + (round as i64 + 1);
    }
    (x, y)
}

/// The inverse of the error function, by the polynomials of Giles (2010) for `f32`.
#[track_caller]
fn erf_inv<'b>(x: Op<'b>) -> Op<'b> {
    const CENTRAL: [f32; 9] = [
        2.810_226_4e-8,
        3.432_739_4e-7,
        -3.523_387_7e-6,
        -4.391_506_5e-6,
        0.000_218_580_87,
        -0.001_253_725,
        -0.004_177_681_6,
        0.246_640_73,
        1.501_409_4,
    ];
    const TAILS: [f32; 9] = [
        -0.000_200_214_26,
        0.000_100_950_56,
        0.001_349_343_2,
        -0.003_673_428_4,
        0.005_739_507_7,
        -0.007_622_461_3,
        0.009_438_870_5,
        1.001_674,
        2.832_976_8,
    ];
    let w = -((x * -x).log1p());
    let is_central = w.lt(5);
    let w = is_central.select(w - 2.5, w.sqrt() - 3.0);
    let mut polynomial = is_central.select(x.full_like(CENTRAL[0]), x.full_like(TAILS[0]));
    for (central, tail) in CENTRAL.into_iter().zip(TAILS).skip(1) {
        polynomial = is_central.select(x.full_like(central), x.full_like(tail)) + polynomial * w;
    }
    x.abs().eq(1).select(x * f64::INFINITY, polynomial * x)
}
