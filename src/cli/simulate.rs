//! `spmd-run simulate`: what a program would take on a cluster that is not there.

use anyhow::anyhow;
use clap::Args;
use spmd_run::hlo::Program;
use spmd_run::inspect::simulate::{
    self, Collective, Device, Link, Prediction, Topology, parse_bandwidth, parse_flops, parse_seconds,
};
use spmd_run::launch::ControllerEnv;
use spmd_run::partition;
use spmd_run::runtime::program_of_one_device;

use super::launch;
use super::program::{ProgramOptions, load_plugin};
use super::report::{print, table, time};
use super::{Failure, Format};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    program: ProgramOptions,

    /// Slices: groups of hosts that share a fast interconnect
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    slices: u32,

    /// Hosts of each slice
    #[arg(long, value_name = "H", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    hosts_per_slice: u32,

    /// Devices of each host [default: the program's devices ÷ hosts]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=2048))]
    devices_per_host: Option<u32>,

    /// One process per device instead of one per host
    #[arg(long)]
    per_chip: bool,

    /// Between processes of a slice, for each process: bandwidth in each direction, and latency
    #[arg(long, value_name = "RATE,TIME", default_value = "100GB/s,1us")]
    ici: Link,

    /// Between slices, for each host: bandwidth in each direction, and latency
    #[arg(long, value_name = "RATE,TIME", default_value = "6GB/s,50us")]
    dcn: Link,

    /// Floating-point operations per second of a device, as in 100T
    #[arg(long, value_name = "RATE", value_parser = parse_flops)]
    flops: Option<f64>,

    /// Bytes per second between a device and its memory, as in 819GB/s
    #[arg(long, value_name = "RATE", value_parser = parse_bandwidth)]
    memory_bandwidth: Option<f64>,

    /// Time of a step without its collectives where it was measured, as in 12.5ms: `spmd-run --repeat` on one device shows it
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, conflicts_with_all = ["flops", "memory_bandwidth"])]
    compute: Option<f64>,

    /// PJRT plugin that partitions the program: a known name or the path of a shared library
    #[arg(long, value_name = "NAME|PATH")]
    plugin: Option<String>,

    /// Form of the report
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// More devices than any cluster has, and few enough to count them one by one.
const MOST_DEVICES: u64 = 1 << 22;

/// The most devices that XLA's CPU client makes, and so partitions for.
const MOST_PARTITIONED: u64 = 2048;

pub fn main(options: Options) -> Result<u8, Failure> {
    // As with a run of one process, a launcher tells the story when the plugin ends the process.
    if ControllerEnv::from_env().map_err(Failure::wrong_usage)?.is_none() {
        return launch::run(&launch::this_command(1)?, Some(&options.program.program));
    }
    let bytes = options.program.read()?;
    let (program, _) = options.program.load(&bytes)?;
    let plugin = load_plugin(options.plugin.as_deref())?;
    let counts = options.program.counts(&program, &bytes, || Ok(plugin.clone()))?;
    let number = |option: Option<u32>, found: Option<i64>| option.map(i64::from).or(found).unwrap_or(1).max(1);
    let replicas = number(options.program.num_replicas, counts.replicas.map(|(count, _)| count));
    let partitions = number(options.program.num_partitions, counts.partitions.map(|(count, _)| count));
    let topology = options.topology((replicas as u64).saturating_mul(partitions as u64))?;
    let was_partitioned = matches!(&program, Program::Hlo(module) if partition::is_partitioned(module));
    if topology.device_count() > MOST_PARTITIONED && partitions > 1 && !was_partitioned {
        return Err(Failure::usage(format!(
            "{}: the program is for {} devices, and XLA partitions for at most {MOST_PARTITIONED} at a time here: give the \
             program of one device, as XLA dumps it after its pass spmd-partitioning, or write its collectives' groups for \
             that many devices",
            options.program.name(),
            topology.device_count()
        )));
    }
    let module = program_of_one_device(&plugin, program, replicas, partitions)
        .map_err(|error| options.program.failure(&bytes, error))?;
    let device =
        Device { flops: options.flops, memory_bandwidth: options.memory_bandwidth, compute_seconds: options.compute };
    let prediction = simulate::simulate(&module, (replicas, partitions), &topology, &device)
        .map_err(|error| Failure::program(anyhow!(error).context(options.program.name())))?;
    print(&match options.format {
        Format::Text => text(&prediction, &device),
        Format::Json => serde_json::to_string(&prediction).map_err(Failure::program)? + "\n",
    })?;
    Ok(0)
}

impl Options {
    fn topology(&self, devices: u64) -> Result<Topology, Failure> {
        if devices > MOST_DEVICES {
            let name = self.program.name();
            return Err(Failure::usage(format!(
                "{name}: the program is for {devices} devices, more than {MOST_DEVICES}"
            )));
        }
        let hosts = u64::from(self.slices) * u64::from(self.hosts_per_slice);
        let per_host = match self.devices_per_host {
            Some(count) => count,
            None => u32::try_from((devices / hosts).max(1)).unwrap_or(u32::MAX),
        };
        let (processes_per_host, devices_per_process) = if self.per_chip { (per_host, 1) } else { (1, per_host) };
        let (slices, hosts_per_slice, ici, dcn) = (self.slices, self.hosts_per_slice, self.ici, self.dcn);
        let topology = Topology { slices, hosts_per_slice, processes_per_host, devices_per_process, ici, dcn };
        if topology.device_count() == devices {
            return Ok(topology);
        }
        Err(Failure::usage(format!(
            "{}: the program is for {devices} devices, and {} slices × {} hosts × {per_host} devices are {}: change \
             --slices, --hosts-per-slice or --devices-per-host{}",
            self.program.name(),
            self.slices,
            self.hosts_per_slice,
            topology.device_count(),
            if devices == 1 { ", or give --num-partitions where the program does not say" } else { "" }
        )))
    }
}

fn text(prediction: &Prediction, device: &Device) -> String {
    let topology = &prediction.topology;
    let link = |link: &Link| format!("{}/s, {}", size(link.bytes_per_second), time(link.latency_seconds));
    let mut text = format!(
        "program   {}\ncluster   {} devices: {} slice(s) × {} host(s) × {} process(es) × {} device(s)\nICI       {} per process\n\
         DCN       {} per host\n\n",
        prediction.name,
        prediction.device_count,
        topology.slices,
        topology.hosts_per_slice,
        topology.processes_per_host,
        topology.devices_per_process,
        link(&topology.ici),
        link(&topology.dcn),
    );
    if !prediction.collectives.is_empty() {
        text += &collectives(prediction);
        text += "ICI, DCN: bytes of the busiest process inside its slice, and of the busiest host to other slices\n\n";
    }
    text += &format!(
        "work         {}\ncollectives  {}, most of it {}\nstep         {} one after the other, {} if all that can be is done \
         at the same time\n",
        work(prediction, device),
        time(prediction.collective_seconds),
        prediction.limit.name(),
        time(prediction.step_seconds),
        time(prediction.overlapped_step_seconds),
    );
    if prediction.has_unknown_loops {
        text += "loops whose trip count cannot be told are counted for one turn\n";
    }
    text
}

/// A table with a row for each collective.
fn collectives(prediction: &Prediction) -> String {
    let share = |seconds: f64| match prediction.collective_seconds > 0.0 {
        true => format!("{:.0} %", 100.0 * seconds / prediction.collective_seconds),
        false => "-".to_owned(),
    };
    let row = |collective: &Collective| {
        let Collective { timing, .. } = collective;
        vec![
            collective.opcode.clone(),
            collective.name.clone(),
            collective.operands.join(" "),
            format!("{} × {}", collective.groups, collective.group_size),
            collective.runs.times.to_string(),
            timing.algorithm.name().to_owned(),
            size(timing.ici_bytes),
            size(timing.dcn_bytes),
            time(timing.seconds),
            time(collective.step_seconds),
            share(collective.step_seconds),
            timing.limit.name().to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = prediction.collectives.iter().map(row).collect();
    let columns = [
        "collective",
        "name",
        "operands",
        "#groups",
        "#runs",
        "algorithm",
        "#ICI",
        "#DCN",
        "#time",
        "#per step",
        "#share",
        "limit",
    ];
    table(&columns, &rows)
}

/// How long a device's own work takes, and what that follows from.
fn work(prediction: &Prediction, device: &Device) -> String {
    if *device == Device::default() {
        return "not reckoned with: give --flops, --memory-bandwidth or --compute".to_owned();
    }
    let seconds = time(prediction.compute_seconds);
    if device.compute_seconds.is_some() {
        return format!("{seconds} (given)");
    }
    let flops = prediction.cost.flops.saturating_add(prediction.cost.transcendentals) as f64;
    format!("{seconds}: {flops:.4e} flops, {} to and from memory", size(prediction.memory_bytes as f64))
}

/// Bytes for people, in decimal units, as links are measured in.
fn size(bytes: f64) -> String {
    const UNITS: [(&str, f64); 4] = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match UNITS.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.4} {name}", bytes / unit).replacen(".0000", "", 1),
        None => format!("{bytes:.0} B"),
    }
}
