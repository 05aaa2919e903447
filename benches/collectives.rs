//! How long collectives between processes take, without a plugin: `cargo bench --bench collectives -- --help`.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use spmd_run::collective::{ArraySpec, CollectiveKind, CollectiveSpec, Communicator, Limits, ReduceOp, World};
use spmd_run::dtype::DType;
use spmd_run::transport::Transport;
use spmd_run::transport::mesh::{Choice, connect_mesh};

#[derive(Parser)]
struct Options {
    /// Processes
    #[arg(short, default_value = "2")]
    n: usize,
    /// Devices per process
    #[arg(short, default_value = "1")]
    devices: u32,
    /// Sizes in bytes, as nccl-tests counts them: of the larger one of a device's operand and result
    #[arg(short, value_delimiter = ',', default_value = "1024,65536,1048576,16777216,67108864")]
    sizes: Vec<usize>,
    /// auto, shm or tcp
    #[arg(short, value_delimiter = ',', default_value = "shm,tcp")]
    transports: Vec<String>,
    #[arg(short, value_delimiter = ',', default_value = "all_reduce,all_gather,reduce_scatter,all_to_all,ppermute")]
    ops: Vec<String>,
    /// As `cargo bench` passes it
    #[arg(long)]
    bench: bool,
}

const SECRET: &[u8] = b"benchmark";
const PLACE: &str = "SPMD_BENCH_PLACE";

fn main() -> ExitCode {
    let options = Options::parse();
    match std::env::var(PLACE) {
        Ok(place) => {
            run(&options, &place);
            ExitCode::SUCCESS
        }
        Err(_) => launch(&options),
    }
}

fn launch(options: &Options) -> ExitCode {
    println!(
        "{:>10} {:>15} {:>10} {:>10} {:>10} {:>10} {:>9}",
        "transport", "op", "size", "min us", "median us", "p99 us", "GB/s alg"
    );
    for transport in &options.transports {
        let listeners: Vec<TcpListener> =
            (0..options.n).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port on loopback")).collect();
        let addresses: Vec<String> =
            listeners.iter().map(|listener| listener.local_addr().expect("a bound socket").to_string()).collect();
        let children: Vec<_> = listeners
            .iter()
            .enumerate()
            .map(|(index, listener)| {
                let fd = listener.as_raw_fd();
                // SAFETY: keeps the listener open in the child; the descriptor is ours.
                unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
                Command::new(std::env::current_exe().expect("this program"))
                    .args(std::env::args_os().skip(1))
                    .env(PLACE, format!("{index} {fd} {transport} {}", addresses.join(",")))
                    .spawn()
                    .expect("a child process")
            })
            .collect();
        for mut child in children {
            if !child.wait().is_ok_and(|status| status.success()) {
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn spec(op: &str, size: usize, devices: usize) -> CollectiveSpec {
    let elements = (size / 4 / devices).max(1) * devices;
    let (whole, part) = (ArraySpec::new(DType::F32, [elements]), ArraySpec::new(DType::F32, [elements / devices]));
    let sum = ReduceOp::Sum;
    let ring = (0..devices as u32).map(|device| (device, (device + 1) % devices as u32)).collect();
    let (kind, operand, result) = match op {
        "all_reduce" => (CollectiveKind::AllReduce { op: sum }, whole.clone(), whole),
        "all_gather" => (CollectiveKind::AllGather { dim: 0 }, part, whole),
        "reduce_scatter" => (CollectiveKind::ReduceScatter { op: sum, dim: 0 }, whole, part),
        "all_to_all" => (CollectiveKind::AllToAll { split_dim: Some(0) }, whole.clone(), whole),
        "ppermute" => (CollectiveKind::CollectivePermute { pairs: ring }, whole.clone(), whole),
        _ => panic!("unknown op {op}"),
    };
    CollectiveSpec { key: 0, name: op.to_owned(), kind, groups: vec![], operands: vec![operand], results: vec![result] }
}

fn run(options: &Options, place: &str) {
    let fields: Vec<&str> = place.split(' ').collect();
    let [index, fd, transport, addresses] = fields[..] else { panic!("bad {PLACE}") };
    let (index, fd): (u32, i32) = (index.parse().expect("an index"), fd.parse().expect("a descriptor"));
    let choice = match transport {
        "auto" => Choice::Auto,
        "tcp" => Choice::Tcp,
        "shm" => Choice::Shm,
        _ => panic!("unknown transport {transport}"),
    };
    // SAFETY: the parent left this descriptor open for us.
    let listener = unsafe { TcpListener::from_raw_fd(fd) };
    let addresses: Vec<SocketAddr> = addresses.split(',').map(|text| text.parse().expect("an address")).collect();
    let limit = Duration::from_secs(60);
    let mesh = connect_mesh(index, listener, &addresses, SECRET, choice, limit).expect("a connection to everyone");
    let world = World { process_index: index, devices_per_process: vec![options.devices; options.n] };
    let mesh: Arc<dyn Transport> = Arc::new(mesh);
    let communicator = Communicator::new(world, Some(mesh), Limits { timeout: limit }).expect("a communicator");
    let mut program = 0;
    for op in &options.ops {
        for &size in &options.sizes {
            let spec = spec(op, size, options.n * options.devices as usize);
            let operand: Vec<u8> = (0..spec.operands[0].num_elements().unwrap_or(0))
                .flat_map(|i| ((i % 1000) as f32).to_le_bytes())
                .collect();
            let operands = vec![vec![operand]; options.devices as usize];
            program += 1;
            let collectives = communicator.program(program, vec![spec]).expect("a program");
            let calls = ((256 << 20) / size.max(1)).clamp(11, 2000);
            let repeated = collectives.repeat(1, 0, calls, &operands).expect("no failure");
            if index == 0 {
                let mut times: Vec<f64> = repeated.times[calls / 10..].iter().map(|t| t.as_secs_f64() * 1e6).collect();
                times.sort_by(f64::total_cmp);
                let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
                println!(
                    "{transport:>10} {op:>15} {size:>10} {:>10.1} {:>10.1} {:>10.1} {:>9.3}",
                    at(0.0),
                    at(0.5),
                    at(0.99),
                    size as f64 / at(0.5) / 1e3
                );
            }
        }
    }
}
