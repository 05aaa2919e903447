//! How long jobs of many processes take to meet, and how much memory that takes, without devices.
//!
//!     cargo bench --bench rendezvous [-- 10 100 500 2000]
//!
//! Process 0, with the coordinator, is one program; the clients of all other processes are another one, with a thread
//! each. They join, exchange what a process tells of its devices, and pass a barrier ten times.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use spmd_run::rendezvous::{JoinOptions, Progress, Rendezvous, listen};

const LIMIT: Duration = Duration::from_secs(300);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// About what a process tells of four devices.
const TOPOLOGY: [u8; 200] = [7; 200];
const BARRIERS: u32 = 10;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["host", count] => host(count.parse().expect("a number")),
        ["clients", count, address] => clients(count.parse().expect("a number"), address),
        counts => {
            println!("processes  join (ms)  all_gather (ms)  barrier (ms)  host (MiB)  clients (MiB)  host CPU (s)");
            let counts = if counts.is_empty() { &["10", "100", "500", "2000"] } else { counts };
            counts.iter().for_each(|count| measure(count));
        }
    }
}

fn start(arguments: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
    (child, lines)
}

fn measure(count: &str) {
    let (mut host, mut host_lines) = start(&["host", count]);
    let mut line = || {
        let mut line = String::new();
        host_lines.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    };
    let (mut clients, mut client_lines) = start(&["clients", count, &line()]);
    let row = line();
    let mut memory = String::new();
    client_lines.read_line(&mut memory).expect("a line");
    let fields: Vec<&str> = row.split(' ').chain([memory.trim()]).collect();
    let [join, gather, barrier, memory, cpu, clients_memory] = fields[..] else { panic!("{row}") };
    println!("{count:>9}  {join:>9}  {gather:>15}  {barrier:>12}  {memory:>10}  {clients_memory:>13}  {cpu:>12}");
    assert!(host.wait().expect("an end").success() && clients.wait().expect("an end").success());
}

fn options(address: &str, index: u32, count: u32) -> JoinOptions {
    JoinOptions { token: Some(TOKEN.parse().expect("a token")), ..JoinOptions::new(address, index, count, LIMIT) }
}

/// What every process does; returns how long joining, gathering and the barriers took.
fn take_part(options: JoinOptions) -> [Duration; 3] {
    let mut lap = Instant::now();
    let mut lap = || std::mem::replace(&mut lap, Instant::now()).elapsed();
    let job = Rendezvous::join(options).expect("it joins");
    job.report(|| Progress { step: 1, collective: Some("all-reduce.1".into()), ..Progress::default() });
    let join = lap();
    let all = job.all_gather("topology", &TOPOLOGY, LIMIT).expect("all are there");
    assert_eq!(all.len(), job.process_count() as usize);
    let gather = lap();
    for _ in 0..BARRIERS {
        job.barrier("step", LIMIT).expect("all are there");
    }
    let barriers = lap();
    // Some signs of life.
    thread::sleep(Duration::from_secs(2));
    job.shutdown(LIMIT).expect("all are there");
    [join, gather, barriers / BARRIERS]
}

fn host(count: u32) {
    let listener = listen("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    println!("{address}");
    std::io::stdout().flush().expect("a pipe");
    let options = JoinOptions { host_coordinator: Some(listener), ..options(&address, 0, count) };
    let times = take_part(options).map(|time| format!("{:.1}", time.as_secs_f64() * 1e3));
    println!("{} {} {:.2}", times.join(" "), memory(), cpu_seconds());
}

fn clients(count: u32, address: &str) {
    thread::scope(|scope| {
        for index in 1..count {
            let client = move || take_part(options(address, index, count));
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, client).expect("a thread");
        }
    });
    println!("{}", memory());
}

/// The most memory that this process has had, in MiB.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kib: f64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    format!("{:.1}", kib / 1024.0)
}

/// The time that this process has computed for, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
