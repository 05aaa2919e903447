//! Linear algebra, Fourier transforms, batch normalization and random numbers.

use super::dims::{expect_array, expect_dim, expect_same, same_dims, same_size, text};
use super::elementwise::expect_class;
use super::types::{Class, is_complex};
use super::{Check, Site, ensure};
use crate::dtype::DType;
use crate::hlo::shape;
use crate::proto::triangular_solve_options::Transpose;
use crate::proto::{FftType, RandomDistribution};

/// Transforms of one to three dimensions.
const MOST_FFT_DIMENSIONS: usize = 3;

pub(super) fn fft(site: &Site) -> Check {
    let operand = site.array(0)?;
    let lengths = &site.instruction.details().fft_length;
    let (rank, count) = (operand.dimensions.len(), lengths.len());
    ensure!((1..=MOST_FFT_DIMENSIONS).contains(&count), "it transforms {count} dimensions, and 1 to 3 are possible");
    ensure!(count <= rank, "it transforms {count} dimensions of {rank}");
    ensure!(lengths.iter().all(|&length| length >= 0), "its lengths {{{}}} are negative", shape::join(lengths));
    let dtype = site.dtype(0)?;
    let (outer, transformed) = operand.dimensions.split_at(rank - count);
    let half = |length: i64| if length == 0 { 0 } else { length / 2 + 1 };
    let last = lengths[count - 1];
    let halved = [&lengths[..count - 1], &[half(last)]].concat();
    let kind = site.instruction.details().fft_type.as_known();
    let (input, element, output) = match kind {
        Some(FftType::FFT | FftType::IFFT) => {
            expect_class("operand 0", operand, Class::Complex)?;
            (lengths.clone(), dtype, lengths.clone())
        }
        Some(FftType::RFFT) => {
            let element = match dtype {
                DType::F32 => DType::C64,
                DType::F64 => DType::C128,
                _ => return Err(format!("operand 0 is {}, and RFFT takes f32 or f64", text(operand))),
            };
            (lengths.clone(), element, halved)
        }
        Some(FftType::IRFFT) => {
            expect_class("operand 0", operand, Class::Complex)?;
            let element = if dtype == DType::C64 { DType::F32 } else { DType::F64 };
            (halved, element, lengths.clone())
        }
        None => return Err(format!("its type {} is unknown", site.instruction.details().fft_type.to_i32())),
    };
    // An FFT of other lengths than its operand's is no error to XLA, which then takes the operand's.
    let checked = !matches!(kind, Some(FftType::FFT | FftType::IFFT));
    ensure!(
        !checked || same_dims(transformed, &input),
        "the last dimensions of {} must be [{}] for fft_length={{{}}}",
        text(operand),
        shape::join(&input),
        shape::join(lengths)
    );
    let output = if checked { output } else { transformed.to_vec() };
    site.expect_result(element, &[outer, &output].concat())
}

/// The last two dimensions of operand 0 make square matrices of inexact numbers.
fn square(site: &Site) -> Check {
    let matrix = site.array(0)?;
    expect_class("operand 0", matrix, Class::FloatOrComplex)?;
    let is_square = matches!(matrix.dimensions.as_slice(), [.., rows, columns] if same_size(*rows, *columns));
    ensure!(is_square, "{} is no square matrix", text(matrix));
    Ok(())
}

pub(super) fn cholesky(site: &Site) -> Check {
    square(site)?;
    expect_same("it", site.shape(), site.operand(0))
}

pub(super) fn triangular_solve(site: &Site) -> Check {
    square(site)?;
    let (a, b) = (site.array(0)?, site.array(1)?);
    site.expect_type("operand 1", b, a)?;
    let rank = a.dimensions.len();
    ensure!(b.dimensions.len() == rank, "its operands have the ranks {rank} and {}", b.dimensions.len());
    let options = &*site.instruction.details().triangular_solve_options;
    let shared = if options.left_side { rank - 2 } else { rank - 1 };
    let fits = same_size(a.dimensions[rank - 1], b.dimensions[shared])
        && same_dims(&a.dimensions[..rank - 2], &b.dimensions[..rank - 2]);
    let side = if options.left_side { "left" } else { "right" };
    ensure!(fits, "{} on the {side} side does not fit {}", text(a), text(b));
    ensure!(
        !matches!(options.transpose_a.as_known(), None | Some(Transpose::TRANSPOSE_INVALID)),
        "it needs a transpose_a: NO_TRANSPOSE, TRANSPOSE or ADJOINT"
    );
    expect_same("it", site.shape(), b)
}

pub(super) fn batch_norm(site: &Site) -> Check {
    let operand = site.array(0)?;
    expect_class("operand 0", operand, Class::Float)?;
    let dtype = site.dtype(0)?;
    let feature = expect_dim("feature_index", site.instruction.details().feature_index, operand.dimensions.len())?;
    let features = [operand.dimensions[feature]];
    let is_grad = site.instruction.opcode == "batch-norm-grad";
    for index in 1..site.operands.len() {
        let other = site.array(index)?;
        if is_grad && index == 4 {
            expect_same("operand 4", other, operand)?;
        } else {
            expect_array(&format!("operand {index}"), other, dtype, &features)?;
        }
    }
    if site.instruction.opcode == "batch-norm-inference" {
        return expect_same("it", site.shape(), operand);
    }
    let results = &site.shape().tuple_shapes;
    ensure!(results.len() == 3, "its shape is {}, and it must be a tuple of 3 arrays", text(site.shape()));
    expect_same("its first part", &results[0], operand)?;
    results[1..].iter().try_for_each(|part| expect_array("its part", part, dtype, &features))
}

pub(super) fn rng(site: &Site) -> Check {
    let result = site.array_result()?;
    for index in 0..site.operands.len() {
        site.scalar_of(index, result)?;
    }
    ensure!(site.operands.len() == 2, "it has {} operands instead of 2", site.operands.len());
    match site.instruction.details().distribution.as_known() {
        Some(RandomDistribution::RNG_UNIFORM) => {}
        Some(RandomDistribution::RNG_NORMAL) => expect_class("it", result, Class::Float)?,
        _ => return Err("its distribution must be rng_uniform or rng_normal".to_owned()),
    }
    let dtype = site.dtype(0)?;
    let fits = matches!(dtype, DType::F16 | DType::BF16) || matches!(dtype.bits(), 32 | 64) && !is_complex(dtype);
    ensure!(fits, "it is {}, and random numbers are f16, bf16 or real ones of 32 or 64 bits", text(result));
    Ok(())
}

/// The new state and the bits; or the bits alone.
pub(super) fn rng_bit_generator(site: &Site) -> Check {
    let state = site.array(0)?;
    match &site.shape().tuple_shapes[..] {
        [new_state, bits] if shape::is_tuple(site.shape()) => {
            ensure!(shape::dtype(bits).is_some(), "its second part is {}, and it must be an array", text(bits));
            expect_same("its first part", new_state, state)
        }
        _ => site.array_result().map(drop),
    }
}

pub(super) fn rng_state(site: &Site) -> Check {
    site.expect_result(DType::U64, &[2])
}
