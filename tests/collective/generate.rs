//! Collectives and their operands, made from numbers that look random.

use spmd_run::collective::{ArraySpec, CollectiveKind, CollectiveSpec, ReduceOp};
use spmd_run::dtype::DType;

use crate::reference;

pub const OPS: [ReduceOp; 7] =
    [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max, ReduceOp::And, ReduceOp::Or, ReduceOp::Xor];

/// Numbers that look random.
pub struct Values(pub u64);

impl Values {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }

    fn float(&mut self) -> f64 {
        match self.below(40) {
            0 => self.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0]),
            _ => (self.next() >> 11) as f64 / (1u64 << 51) as f64 - 2.0,
        }
    }

    fn element(&mut self, dtype: DType) -> Vec<u8> {
        let word = self.next();
        match dtype {
            DType::Pred => vec![(word & 1) as u8],
            DType::S1 | DType::S2 | DType::S4 => {
                let unused = 8 - dtype.bits() as u32;
                vec![((word as i8) << unused >> unused) as u8]
            }
            DType::U1 | DType::U2 | DType::U4 => vec![word as u8 >> (8 - dtype.bits())],
            DType::F32 => (self.float() as f32).to_le_bytes().to_vec(),
            DType::F64 => self.float().to_le_bytes().to_vec(),
            DType::C64 => [self.float(), self.float()].iter().flat_map(|part| (*part as f32).to_le_bytes()).collect(),
            DType::C128 => [self.float(), self.float()].iter().flat_map(|part| part.to_le_bytes()).collect(),
            DType::F16 => half::f16::from_f64(self.float()).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f64(self.float()).to_le_bytes().to_vec(),
            DType::F8E8M0FNU => vec![120 + (word % 8) as u8],
            _ if dtype.name().starts_with('f') => loop {
                // Sums of a dozen and all products stay finite.
                let pattern = self.next() as u8 >> (8 - dtype.bits());
                let negative_zero = pattern == 1 << (dtype.bits() - 1);
                if reference::small_value(dtype, pattern).abs() <= 1.0 && !negative_zero {
                    return vec![pattern];
                }
            },
            _ => word.to_le_bytes()[..dtype.size()].to_vec(),
        }
    }

    fn array(&mut self, array: &ArraySpec) -> Vec<u8> {
        // Large arrays repeat after a number of elements that no chunk is a multiple of.
        let len = array.num_elements().unwrap();
        let period: Vec<u8> = (0..len.min(499)).flat_map(|_| self.element(array.dtype)).collect();
        period.iter().copied().cycle().take(len * array.dtype.size()).collect()
    }

    /// The devices in some order, in groups of one size if they have to be, else of any.
    fn groups(&mut self, devices: usize, uniform: bool) -> Vec<Vec<u32>> {
        let mut ids: Vec<u32> = (0..devices as u32).collect();
        self.shuffle(&mut ids);
        if uniform {
            let sizes: Vec<usize> = (1..=devices).filter(|size| devices.is_multiple_of(*size)).collect();
            return ids.chunks(self.pick(&sizes)).map(<[u32]>::to_vec).collect();
        }
        let mut groups = vec![];
        while !ids.is_empty() {
            let size = 1 + self.below(ids.len());
            groups.push(ids.split_off(ids.len() - size));
        }
        groups
    }
}

pub const KINDS: usize = 8;

/// An instruction of one of [`KINDS`] kinds for this many devices; `large` ones take the way of large messages.
pub fn make_spec(key: u32, kind: usize, devices: usize, large: bool, values: &mut Values) -> CollectiveSpec {
    let groups = if values.below(5) == 0 { vec![] } else { values.groups(devices, !matches!(kind, 0 | 5 | 6)) };
    let group_size = groups.first().map_or(devices, Vec::len);
    let op = values.pick(&OPS);
    let usable =
        |dtype: &DType| (kind > 1 || op.supports(*dtype)) && (!large || dtype.size() >= if kind > 1 { 8 } else { 2 });
    let dtypes: Vec<DType> = DType::all().filter(usable).collect();
    let mut dims: Vec<usize> = (0..1 + values.below(3)).map(|_| values.below(5)).collect();
    let dim = values.below(dims.len());
    if large {
        // Beyond what travels at once, for all that only moves elements; the reference is slow.
        dims.fill(1);
        let grown = values.below(dims.len());
        dims[grown] = 16_500 + values.below(1000);
    }
    let scaled = |by: usize| {
        let mut dims = dims.clone();
        dims[dim] *= by;
        dims
    };
    let mut arrays = |dims: Vec<usize>, count: usize| -> Vec<ArraySpec> {
        (0..count).map(|_| ArraySpec::new(values.pick(&dtypes), dims.clone())).collect()
    };
    let count = if large { 1 } else { 1 + key as usize % 3 };
    let as_results = |operands: &[ArraySpec], dims: &[usize]| -> Vec<ArraySpec> {
        operands.iter().map(|operand| ArraySpec::new(operand.dtype, dims)).collect()
    };
    let (kind, operands, results) = match kind {
        0 => {
            let operands = arrays(dims.clone(), count);
            (CollectiveKind::AllReduce { op }, operands.clone(), operands)
        }
        1 => {
            let operands = arrays(scaled(group_size), count);
            let results = as_results(&operands, &dims);
            (CollectiveKind::ReduceScatter { op, dim }, operands, results)
        }
        2 => {
            let operands = arrays(dims.clone(), count);
            let results = as_results(&operands, &scaled(group_size));
            (CollectiveKind::AllGather { dim }, operands, results)
        }
        3 => {
            let operands = arrays(scaled(group_size), 1);
            (CollectiveKind::AllToAll { split_dim: Some(dim) }, operands.clone(), operands)
        }
        4 => {
            let operands = vec![arrays(dims.clone(), 1).remove(0); group_size];
            (CollectiveKind::AllToAll { split_dim: None }, operands.clone(), operands)
        }
        5 => {
            let operands = arrays(dims.clone(), count);
            (CollectiveKind::CollectiveBroadcast, operands.clone(), operands)
        }
        6 => {
            let operands = arrays(dims.clone(), count);
            (CollectiveKind::CollectivePermute { pairs: vec![] }, operands.clone(), operands)
        }
        _ => {
            let row = arrays(dims.clone(), 1).remove(0);
            let rows = |count: usize| {
                let mut dims = vec![count];
                dims.extend_from_slice(&row.dims);
                ArraySpec::new(row.dtype, dims)
            };
            let updates = 1 + key as usize % 2;
            let numbers = ArraySpec::new(values.pick(&[DType::S32, DType::S64]), [group_size * updates]);
            let mut operands = vec![rows(5), rows(2 * group_size * updates + 1)];
            operands.extend(vec![numbers; 4]);
            let results = vec![operands[1].clone()];
            (CollectiveKind::RaggedAllToAll, operands, results)
        }
    };
    let mut spec = CollectiveSpec { key, name: format!("collective.{key}"), kind, groups, operands, results };
    if let CollectiveKind::CollectivePermute { pairs } = &mut spec.kind {
        for group in if spec.groups.is_empty() { vec![(0..devices as u32).collect()] } else { spec.groups.clone() } {
            let mut targets = group.clone();
            values.shuffle(&mut targets);
            pairs.extend(group.into_iter().zip(targets).filter(|_| values.below(4) > 0));
        }
    }
    spec
}

/// Operands for each device.
pub fn make_operands(spec: &CollectiveSpec, devices: usize, values: &mut Values) -> Vec<Vec<Vec<u8>>> {
    let mut operands: Vec<Vec<Vec<u8>>> =
        (0..devices).map(|_| spec.operands.iter().map(|array| values.array(array)).collect()).collect();
    if spec.kind == CollectiveKind::RaggedAllToAll {
        for group in reference::groups(spec, devices) {
            let updates = spec.operands[2].dims[0] / group.len();
            let size = spec.operands[2].dtype.size();
            for (rank, &target) in group.iter().enumerate() {
                let mut offset = 0;
                for (from, &source) in group.iter().enumerate() {
                    for update in 0..updates {
                        let rows = values.below(3);
                        let mut set = |device: u32, operand: usize, index: usize, number: usize| {
                            operands[device as usize][operand][index * size..][..size]
                                .copy_from_slice(&number.to_le_bytes()[..size]);
                        };
                        set(source, 2, rank * updates + update, values.below(3));
                        set(source, 3, rank * updates + update, rows);
                        set(source, 4, rank * updates + update, offset);
                        set(target, 5, from * updates + update, rows);
                        offset += rows;
                    }
                }
            }
        }
    }
    operands
}
