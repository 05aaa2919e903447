//! `spmd-run bench collectives`: collectives of growing size, in the manner of nccl-tests.

use std::num::NonZeroU32;

use clap::{Args, ValueEnum};
use spmd_run::bench::{Collectives, Op, Settings, Split, Way};
use spmd_run::collective::ReduceOp;
use spmd_run::dtype::DType;
use spmd_run::runtime::{Runtime, RuntimeError};

use super::plot::{self, Picture};
use super::rows::{Report, Row};
use crate::cli::Failure;
use crate::cli::job::JobOptions;
use crate::cli::report::check_writable;

/// What differs from nccl-tests, below the options.
pub const NOTES: &str = "\
Options have nccl-tests' meaning, but -n: it counts processes, as everywhere in spmd-run, and --iters the steps. Time \
is the median step until its last process is done. Sizes are those of a rank's larger buffer, rounded down to whole \
elements for every rank. Results are new memory, never the operand's (out of place).";

#[derive(Args)]
pub struct Options {
    /// Collectives, separated by commas: all_reduce, all_gather, reduce_scatter, alltoall, ppermute, broadcast,
    /// sendrecv [default: all of them]
    #[arg(value_name = "OP", value_delimiter = ',')]
    ops: Vec<Op>,

    #[command(flatten)]
    job: JobOptions,

    /// First size in bytes; K, M and G are powers of 1024
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "1K", value_parser = bytes)]
    begin: usize,

    /// Largest size [default: 64M, or the first one if that is larger]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = bytes)]
    end: Option<usize>,

    /// Each size is F times the one before it
    #[arg(short = 'f', long = "stepfactor", value_name = "F", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,

    /// Element type, by XLA's name or nccl-tests': f32 or float, bf16 or bfloat16, s32 or int32, …
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "f32", value_parser = dtype)]
    dtype: DType,

    /// How reductions combine
    #[arg(short = 'o', long = "op", value_name = "REDOP", value_enum, default_value = "sum")]
    reduction: Reduction,

    /// Timed steps of each size [default: 20 of 13 MiB and more, up to 1000 of smaller ones]
    #[arg(long, value_name = "COUNT")]
    iters: Option<NonZeroU32>,

    /// Steps before those that are timed
    #[arg(short = 'w', long = "warmup-iters", alias = "warmup_iters", value_name = "COUNT", default_value_t = 5)]
    warmup: u32,

    /// 1 compares the whole result of every rank with what it must be, 0 does not
    #[arg(short = 'c', long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(..=1))]
    check: u8,

    /// Divide the devices into groups: MOD:K, DIV:K as NCCL_TESTS_SPLIT has it, or the groups, as in 0,1/2,3
    #[arg(long, value_name = "SPLIT")]
    groups: Option<Split>,

    /// Measure inside compiled programs, on the engine alone without the plugin, or both
    #[arg(long, value_name = "WAY", value_enum, value_delimiter = ',', default_value = "program,engine")]
    measure: Vec<Measure>,

    /// Form of the results on standard output
    #[arg(long, value_enum, default_value = "text")]
    format: Format,

    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Draw bandwidth and time over size, a line for each collective
    #[arg(long, value_name = "FILE.svg|png")]
    plot: Option<Picture>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Reduction {
    Sum,
    Prod,
    Min,
    Max,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measure {
    Program,
    Engine,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
    Csv,
}

/// A size as nccl-tests takes it, a whole number of bytes.
fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|unit: char| !unit.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_uppercase().trim_end_matches('B') {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        unit => return Err(format!("unknown unit '{unit}': write a whole number, with K, M or G for powers of 1024")),
    };
    let number: usize = digits.parse().map_err(|_| "write a whole number, with K, M or G for powers of 1024")?;
    let size = number.checked_mul(unit).filter(|&size| isize::try_from(size).is_ok()).ok_or("larger than memory")?;
    if size == 0 { Err("must be more than 0".to_owned()) } else { Ok(size) }
}

/// An element type by XLA's name or by the one that nccl-tests has for it.
fn dtype(name: &str) -> Result<DType, spmd_run::dtype::UnknownDType> {
    let xla = match name {
        "int8" => "s8",
        "uint8" => "u8",
        "int32" => "s32",
        "uint32" => "u32",
        "int64" => "s64",
        "uint64" => "u64",
        "half" => "f16",
        "float" => "f32",
        "double" => "f64",
        "bfloat16" => "bf16",
        other => other,
    };
    xla.parse()
}

pub fn main(options: Options) -> Result<u8, Failure> {
    let job = &options.job;
    let settings = options.settings();
    let local_devices = job.devices_per_process().unwrap_or(1);
    let given = settings.clone();
    let check = |processes: u32| {
        let devices = processes.saturating_mul(local_devices);
        given.check(devices, devices).map_err(Failure::wrong_usage)?;
        options.plot.as_ref().map_or(Ok(()), |plot| check_writable(plot.path()))
    };
    job.run(
        &[],
        || Ok(None),
        check,
        |world, data_plane| {
            let settings: Settings = world.from_first("bench", || Ok::<_, RuntimeError>(settings))?;
            let runtime = job.open(world, data_plane, Some(local_devices))?;
            let devices = runtime.topology().device_count() as u32;
            settings.check(devices, local_devices).map_err(Failure::wrong_usage)?;
            options.measure(&runtime, &settings)
        },
    )
}

impl Options {
    fn settings(&self) -> Settings {
        const LARGEST: usize = 64 << 20;
        Settings {
            ops: if self.ops.is_empty() { Op::ALL.to_vec() } else { self.ops.clone() },
            begin: self.begin,
            end: self.end.unwrap_or(LARGEST.max(self.begin)),
            factor: self.factor as usize,
            dtype: self.dtype,
            reduction: match self.reduction {
                Reduction::Sum => ReduceOp::Sum,
                Reduction::Prod => ReduceOp::Product,
                Reduction::Min => ReduceOp::Min,
                Reduction::Max => ReduceOp::Max,
            },
            iterations: self.iters.map(|count| count.get() as usize),
            warmup: self.warmup as usize,
            check: self.check != 0,
            split: self.groups.clone().unwrap_or(Split::Whole),
            ways: self
                .measure
                .iter()
                .map(|way| match way {
                    Measure::Program => Way::Program,
                    Measure::Engine => Way::Engine,
                })
                .collect(),
        }
    }

    /// One controller's part. Process 0 writes the report.
    fn measure(&self, runtime: &Runtime, settings: &Settings) -> Result<u8, Failure> {
        let is_first = runtime.world().process_index() == 0;
        let devices = runtime.topology().device_count() as u32;
        let format = if self.json { Format::Json } else { self.format };
        let mut report = Report::new(format, is_first);
        let mut collectives = Collectives::new(runtime, settings);
        report.begin(runtime, settings)?;
        for &op in &settings.ops {
            report.begin_op(op)?;
            for case in settings.cases(op, devices).map_err(Failure::wrong_usage)? {
                for &way in &settings.ways {
                    report.add(Row::new(&case, collectives.measure(&case, way)?))?;
                }
            }
            report.end_op()?;
        }
        report.end()?;
        if !is_first {
            return Ok(0);
        }
        if let Some(plot) = &self.plot {
            plot::draw(plot, report.rows()).map_err(Failure::program)?;
        }
        match report.wrong() {
            0 => Ok(0),
            wrong => {
                eprintln!("error: {wrong} elements of results are wrong");
                Ok(1)
            }
        }
    }
}
