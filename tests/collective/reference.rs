//! What each collective means, written down one element at a time.

use spmd_run::collective::{CollectiveKind, CollectiveSpec, ReduceOp};
use spmd_run::dtype::DType;

/// Who combines with whom first: process and island of each device.
pub struct Order {
    pub process_of: Vec<usize>,
    pub island_of: Vec<usize>,
}

impl Order {
    /// Processes as if each had an island of its own.
    pub fn of_processes(process_of: Vec<usize>) -> Order {
        Order { island_of: process_of.clone(), process_of }
    }
}

/// Results of every device. `operands` are by device and operand.
pub fn results(spec: &CollectiveSpec, order: &Order, operands: &[Vec<Vec<u8>>]) -> Vec<Vec<Vec<u8>>> {
    let mut results: Vec<Vec<Vec<u8>>> = vec![vec![]; operands.len()];
    for group in groups(spec, operands.len()) {
        let reduced = match spec.kind {
            CollectiveKind::AllReduce { op } | CollectiveKind::ReduceScatter { op, .. } => {
                all_reduce(spec, op, &group, order, operands)
            }
            _ => vec![],
        };
        for (rank, &device) in group.iter().enumerate() {
            results[device as usize] = match &spec.kind {
                CollectiveKind::AllReduce { .. } => reduced.clone(),
                CollectiveKind::ReduceScatter { dim, .. } => {
                    let parts = spec.operands.iter().zip(&reduced);
                    parts
                        .map(|(array, bytes)| {
                            let size = array.dtype.size();
                            split(bytes, &array.dims, size, *dim, group.len()).swap_remove(rank)
                        })
                        .collect()
                }
                CollectiveKind::AllGather { dim } => (0..spec.operands.len())
                    .map(|index| {
                        let array = &spec.operands[index];
                        let parts: Vec<&[u8]> = group.iter().map(|&from| &operands[from as usize][index][..]).collect();
                        join(&parts, &array.dims, array.dtype.size(), *dim)
                    })
                    .collect(),
                CollectiveKind::AllToAll { split_dim: Some(dim) } => (0..spec.operands.len())
                    .map(|index| {
                        let array = &spec.operands[index];
                        let size = array.dtype.size();
                        let mut dims = array.dims.clone();
                        dims[*dim] /= group.len();
                        let parts: Vec<Vec<u8>> = group
                            .iter()
                            .map(|&from| {
                                let bytes = &operands[from as usize][index];
                                split(bytes, &array.dims, size, *dim, group.len()).swap_remove(rank)
                            })
                            .collect();
                        let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
                        join(&parts, &dims, size, *dim)
                    })
                    .collect(),
                CollectiveKind::AllToAll { split_dim: None } => {
                    group.iter().map(|&from| operands[from as usize][rank].clone()).collect()
                }
                CollectiveKind::CollectivePermute { pairs } => {
                    match pairs.iter().find(|(_, target)| *target == device) {
                        Some((source, _)) => operands[*source as usize].clone(),
                        None => operands[device as usize].iter().map(|bytes| vec![0; bytes.len()]).collect(),
                    }
                }
                CollectiveKind::CollectiveBroadcast => operands[group[0] as usize].clone(),
                CollectiveKind::RaggedAllToAll => vec![ragged(spec, &group, rank, operands)],
            };
        }
    }
    results
}

pub fn groups(spec: &CollectiveSpec, devices: usize) -> Vec<Vec<u32>> {
    if spec.groups.is_empty() { vec![(0..devices as u32).collect()] } else { spec.groups.clone() }
}

/// Cuts an array along a dimension.
fn split(bytes: &[u8], dims: &[usize], size: usize, dim: usize, parts: usize) -> Vec<Vec<u8>> {
    let mut split = vec![vec![]; parts];
    for index in 0..bytes.len() / size {
        let inner: usize = dims[dim + 1..].iter().product();
        let at = index / inner % dims[dim];
        split[at / (dims[dim] / parts)].extend_from_slice(&bytes[index * size..][..size]);
    }
    split
}

/// Puts arrays of the same dimensions together along one of them.
fn join(parts: &[&[u8]], dims: &[usize], size: usize, dim: usize) -> Vec<u8> {
    let inner = dims[dim..].iter().product::<usize>() * size;
    let outer: usize = dims[..dim].iter().product();
    let mut joined = vec![];
    for index in 0..outer {
        for part in parts {
            joined.extend_from_slice(&part[index * inner..][..inner]);
        }
    }
    joined
}

fn ragged(spec: &CollectiveSpec, group: &[u32], rank: usize, operands: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let row = spec.operands[0].dims[1..].iter().product::<usize>() * spec.operands[0].dtype.size();
    let updates = spec.operands[2].dims[0] / group.len();
    let size = spec.operands[2].dtype.size();
    let mut result = operands[group[rank] as usize][1].clone();
    for &from in group {
        let number = |operand: usize, index: usize| {
            let bytes = &operands[from as usize][operand][index * size..][..size];
            bytes.iter().rev().fold(0usize, |number, &byte| number << 8 | usize::from(byte))
        };
        for index in rank * updates..(rank + 1) * updates {
            let (source, target, rows) = (number(2, index) * row, number(4, index) * row, number(3, index) * row);
            result[target..target + rows].copy_from_slice(&operands[from as usize][0][source..source + rows]);
        }
    }
    result
}

fn all_reduce(
    spec: &CollectiveSpec,
    op: ReduceOp,
    group: &[u32],
    order: &Order,
    operands: &[Vec<Vec<u8>>],
) -> Vec<Vec<u8>> {
    // By process, by island, and the islands in the order of their first processes.
    type Processes = Vec<(usize, Vec<u32>)>;
    let mut islands: Vec<(usize, Processes)> = vec![];
    let mut devices = group.to_vec();
    devices.sort_by_key(|&device| order.process_of[device as usize]);
    for device in devices {
        let (process, island) = (order.process_of[device as usize], order.island_of[device as usize]);
        let index = islands.iter().position(|(other, _)| *other == island).unwrap_or_else(|| {
            islands.push((island, vec![]));
            islands.len() - 1
        });
        match islands[index].1.last_mut() {
            Some((last, devices)) if *last == process => devices.push(device),
            _ => islands[index].1.push((process, vec![device])),
        }
    }
    for (_, devices) in islands.iter_mut().flat_map(|(_, processes)| processes) {
        devices.sort_by_key(|device| group.iter().position(|member| member == device));
    }
    let combine = |numbers: Vec<Number>| numbers.into_iter().reduce(|a, b| a.combine(op, b)).unwrap();
    let reduce_element = |index: usize, dtype: DType, at: usize| {
        let value = |device: u32| Number::read(dtype, &operands[device as usize][index][at..at + dtype.size()]);
        let of_process = |(_, devices): &(_, Vec<u32>)| combine(devices.iter().map(|&device| value(device)).collect());
        let of_island = |(_, processes): &(_, Vec<_>)| combine(processes.iter().map(of_process).collect());
        combine(islands.iter().map(of_island).collect()).write(dtype)
    };
    spec.operands
        .iter()
        .enumerate()
        .map(|(index, array)| {
            let elements = 0..array.num_elements().unwrap();
            elements.flat_map(|at| reduce_element(index, array.dtype, at * array.dtype.size())).collect()
        })
        .collect()
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Bool(bool),
    Int(i128),
    Single(f32),
    Double(f64),
    Complex64(f32, f32),
    Complex128(f64, f64),
}

impl Number {
    fn read(dtype: DType, bytes: &[u8]) -> Number {
        let word = bytes.iter().rev().fold(0u128, |word, &byte| word << 8 | u128::from(byte));
        let unused = 128 - dtype.bits() as u32;
        match dtype {
            DType::Pred => Number::Bool(word != 0),
            DType::S1 | DType::S2 | DType::S4 | DType::S8 | DType::S16 | DType::S32 | DType::S64 => {
                Number::Int((word << unused).cast_signed() >> unused)
            }
            DType::U1 | DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64 => {
                Number::Int((word << unused >> unused).cast_signed())
            }
            DType::F32 => Number::Single(f32::from_bits(word as u32)),
            DType::F64 => Number::Double(f64::from_bits(word as u64)),
            DType::C64 => Number::Complex64(f32::from_bits(word as u32), f32::from_bits((word >> 32) as u32)),
            DType::C128 => Number::Complex128(f64::from_bits(word as u64), f64::from_bits((word >> 64) as u64)),
            DType::F16 => Number::Single(half::f16::from_bits(word as u16).to_f32()),
            DType::BF16 => Number::Single(half::bf16::from_bits(word as u16).to_f32()),
            _ => Number::Single(small_value(dtype, word as u8) as f32),
        }
    }

    fn write(self, dtype: DType) -> Vec<u8> {
        let bytes = |word: u128| word.to_le_bytes()[..dtype.size()].to_vec();
        match (self, dtype) {
            (Number::Bool(value), _) => vec![u8::from(value)],
            (Number::Int(value), _) => {
                let unused = 128 - dtype.bits() as u32;
                let signed = dtype.name().starts_with('s');
                let word = value.cast_unsigned() << unused;
                bytes(if signed { (word.cast_signed() >> unused).cast_unsigned() } else { word >> unused })
            }
            (Number::Single(value), DType::F32) => bytes(u128::from(value.to_bits())),
            (Number::Single(value), DType::F16) => bytes(u128::from(half::f16::from_f32(value).to_bits())),
            (Number::Single(value), DType::BF16) => bytes(u128::from(half::bf16::from_f32(value).to_bits())),
            (Number::Single(value), _) => vec![nearest_small(dtype, f64::from(value))],
            (Number::Double(value), _) => bytes(u128::from(value.to_bits())),
            (Number::Complex64(re, im), _) => bytes(u128::from(re.to_bits()) | u128::from(im.to_bits()) << 32),
            (Number::Complex128(re, im), _) => bytes(u128::from(re.to_bits()) | u128::from(im.to_bits()) << 64),
        }
    }

    fn combine(self, op: ReduceOp, other: Number) -> Number {
        use Number::*;
        match (op, self, other) {
            (ReduceOp::Sum | ReduceOp::Or | ReduceOp::Max, Bool(a), Bool(b)) => Bool(a || b),
            (ReduceOp::Product | ReduceOp::And | ReduceOp::Min, Bool(a), Bool(b)) => Bool(a && b),
            (ReduceOp::Xor, Bool(a), Bool(b)) => Bool(a != b),
            (ReduceOp::Sum, Int(a), Int(b)) => Int(a.wrapping_add(b)),
            (ReduceOp::Product, Int(a), Int(b)) => Int(a.wrapping_mul(b)),
            (ReduceOp::Min, Int(a), Int(b)) => Int(a.min(b)),
            (ReduceOp::Max, Int(a), Int(b)) => Int(a.max(b)),
            (ReduceOp::And, Int(a), Int(b)) => Int(a & b),
            (ReduceOp::Or, Int(a), Int(b)) => Int(a | b),
            (ReduceOp::Xor, Int(a), Int(b)) => Int(a ^ b),
            (ReduceOp::Sum, Single(a), Single(b)) => Single(a + b),
            (ReduceOp::Product, Single(a), Single(b)) => Single(a * b),
            (ReduceOp::Min | ReduceOp::Max, Single(a), Single(b)) if a.is_nan() || b.is_nan() => Single(f32::NAN),
            (ReduceOp::Min, Single(a), Single(b)) => Single(if b < a { b } else { a }),
            (ReduceOp::Max, Single(a), Single(b)) => Single(if b > a { b } else { a }),
            (ReduceOp::Sum, Double(a), Double(b)) => Double(a + b),
            (ReduceOp::Product, Double(a), Double(b)) => Double(a * b),
            (ReduceOp::Min | ReduceOp::Max, Double(a), Double(b)) if a.is_nan() || b.is_nan() => Double(f64::NAN),
            (ReduceOp::Min, Double(a), Double(b)) => Double(if b < a { b } else { a }),
            (ReduceOp::Max, Double(a), Double(b)) => Double(if b > a { b } else { a }),
            (ReduceOp::Sum, Complex64(a, b), Complex64(c, d)) => Complex64(a + c, b + d),
            (ReduceOp::Product, Complex64(a, b), Complex64(c, d)) => Complex64(a * c - b * d, a * d + b * c),
            (ReduceOp::Sum, Complex128(a, b), Complex128(c, d)) => Complex128(a + c, b + d),
            (ReduceOp::Product, Complex128(a, b), Complex128(c, d)) => Complex128(a * c - b * d, a * d + b * c),
            other => panic!("{other:?} is not defined"),
        }
    }
}

/// Exponent and mantissa bits and bias of a type of at most 8 bits.
fn fields(dtype: DType) -> (u32, u32, i32) {
    match dtype {
        DType::F4E2M1FN => (2, 1, 1),
        DType::F6E2M3FN => (2, 3, 1),
        DType::F6E3M2FN => (3, 2, 3),
        DType::F8E3M4 => (3, 4, 3),
        DType::F8E4M3 | DType::F8E4M3FN => (4, 3, 7),
        DType::F8E4M3B11FNUZ => (4, 3, 11),
        DType::F8E4M3FNUZ => (4, 3, 8),
        DType::F8E5M2 => (5, 2, 15),
        DType::F8E5M2FNUZ => (5, 2, 16),
        other => panic!("{other} is no small float"),
    }
}

/// The value of a finite pattern.
pub fn small_value(dtype: DType, pattern: u8) -> f64 {
    if dtype == DType::F8E8M0FNU {
        return 2f64.powi(i32::from(pattern) - 127);
    }
    let (exponent_bits, mantissa_bits, bias) = fields(dtype);
    let sign = if pattern >> (exponent_bits + mantissa_bits) == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(pattern >> mantissa_bits & ((1 << exponent_bits) - 1));
    let mantissa = f64::from(pattern & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    match exponent {
        0 => sign * mantissa * 2f64.powi(1 - bias),
        _ => sign * (1.0 + mantissa) * 2f64.powi(exponent - bias),
    }
}

/// The pattern of the nearest value, of numbers that do not overflow into infinity or NaN.
fn nearest_small(dtype: DType, value: f64) -> u8 {
    let has_negative_zero = !dtype.name().ends_with("fnuz");
    let last = match dtype {
        DType::F8E8M0FNU => 254,
        _ => (1u8 << (dtype.bits() - 1)) - 1,
    };
    let size = value.abs();
    let closer = |best: u8, pattern: u8| {
        let (a, b) = ((small_value(dtype, best) - size).abs(), (small_value(dtype, pattern) - size).abs());
        let tie = dtype == DType::F8E8M0FNU || pattern.is_multiple_of(2);
        if b < a || b == a && tie { pattern } else { best }
    };
    let magnitude = (0..=last).fold(0, closer);
    let negative = value.is_sign_negative() && (magnitude != 0 || has_negative_zero) && dtype != DType::F8E8M0FNU;
    if negative { magnitude | (last + 1) } else { magnitude }
}

/// Whether two results agree: any NaN for any other.
pub fn agree(dtype: DType, left: &[u8], right: &[u8]) -> bool {
    let parts = match dtype {
        DType::C64 => (DType::F32, 4),
        DType::C128 => (DType::F64, 8),
        _ => (dtype, dtype.size()),
    };
    let is_nan = |bytes: &[u8]| match Number::read(parts.0, bytes) {
        Number::Single(value) if parts.1 > 1 => value.is_nan(),
        Number::Double(value) => value.is_nan(),
        _ => false,
    };
    left.len() == right.len()
        && left
            .chunks_exact(parts.1)
            .zip(right.chunks_exact(parts.1))
            .all(|(left, right)| left == right || is_nan(left) && is_nan(right))
}
