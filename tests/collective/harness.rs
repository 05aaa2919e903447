//! Jobs whose processes all live in this one.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use spmd_run::channel::Identity;
use spmd_run::collective::{
    Cluster, CollectiveError, CollectiveSpec, Communicator, Input, Limits, Links, Output, ProgramCollectives, World,
};
use spmd_run::transport::Transport;
use spmd_run::transport::mesh::{Choice, Mesh, MeshOptions, connect_mesh};

pub const SECRET: &[u8] = b"the secret of this job";
pub const PATIENCE: Duration = Duration::from_secs(60);

pub type Outcome = Result<Vec<Vec<u8>>, CollectiveError>;

pub fn listen(processes: usize) -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let listeners: Vec<TcpListener> = (0..processes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    (listeners, addresses)
}

/// What carries the bytes between the processes of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paths {
    Tcp,
    Shm,
    /// Shared memory between processes that may not read each other's own.
    Rings,
    /// Processes with an odd index use TCP only.
    Mixed,
    /// TCP, encrypted.
    Tls,
    /// As `Mixed`, encrypted.
    MixedTls,
}

pub const ALL_PATHS: [Paths; 6] = [Paths::Tcp, Paths::Shm, Paths::Rings, Paths::Mixed, Paths::Tls, Paths::MixedTls];

impl Paths {
    fn choice(self, process: usize) -> Choice {
        match self {
            Paths::Tcp | Paths::Tls => Choice::Tcp,
            Paths::Shm | Paths::Rings => Choice::Shm,
            Paths::Mixed | Paths::MixedTls if process % 2 == 1 => Choice::Tcp,
            Paths::Mixed | Paths::MixedTls => Choice::Auto,
        }
    }

    /// The island of each process where there are no slices: those with an even index share memory on mixed ways.
    pub fn islands(self, processes: usize) -> Vec<u32> {
        let is_mixed = matches!(self, Paths::Mixed | Paths::MixedTls);
        (0..processes as u32).map(|process| if is_mixed && process % 2 == 0 { 0 } else { process }).collect()
    }

    fn identity(self) -> Option<Identity> {
        matches!(self, Paths::Tls | Paths::MixedTls).then(|| Identity::of_secret(&[7; 32]).unwrap())
    }
}

/// Connects processes of one slice; `addresses_of` says where each looks for the others.
pub fn connect(
    listeners: Vec<TcpListener>,
    paths: Paths,
    addresses_of: impl Fn(usize) -> Vec<SocketAddr>,
) -> Vec<Arc<Mesh>> {
    connect_slices(listeners, paths, &[], PATIENCE, addresses_of)
}

/// Connects processes of these slices, within this time.
pub fn connect_slices(
    listeners: Vec<TcpListener>,
    paths: Paths,
    slices: &[u32],
    timeout: Duration,
    addresses_of: impl Fn(usize) -> Vec<SocketAddr>,
) -> Vec<Arc<Mesh>> {
    let connecting: Vec<_> = listeners
        .into_iter()
        .enumerate()
        .map(|(index, listener)| {
            let addresses = addresses_of(index);
            let options = MeshOptions {
                identity: paths.identity(),
                choice: paths.choice(index),
                slices: slices.to_vec(),
                timeout,
            };
            std::thread::spawn(move || {
                if paths == Paths::Rings {
                    forbid_reading_of_memory();
                }
                connect_mesh(index as u32, listener, &addresses, SECRET, options).unwrap()
            })
        })
        .collect();
    connecting.into_iter().map(|thread| Arc::new(thread.join().unwrap())).collect()
}

/// Takes from this thread, and those that it starts, the right to read other processes' memory, as containers do.
fn forbid_reading_of_memory() {
    let statement = |code, k, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let number_at = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number_at, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_process_vm_readv as u32, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its statements outlive the calls, which copy them.
    let outcomes = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    assert_eq!(outcomes, [0, 0], "{}", std::io::Error::last_os_error());
}

/// All processes of a job.
pub struct Job {
    pub devices_per_process: Vec<u32>,
    pub communicators: Vec<Communicator>,
}

impl Job {
    pub fn new(devices_per_process: &[u32], paths: Paths, timeout: Duration) -> Job {
        let (listeners, addresses) = listen(devices_per_process.len());
        if devices_per_process.len() == 1 {
            return Job::over(devices_per_process, vec![], timeout);
        }
        Job::over(devices_per_process, connect(listeners, paths, |_| addresses.clone()), timeout)
    }

    /// Processes of these slices.
    pub fn in_slices(devices_per_process: &[u32], paths: Paths, slices: &[u32], timeout: Duration) -> Job {
        let (listeners, addresses) = listen(devices_per_process.len());
        let transports = connect_slices(listeners, paths, slices, PATIENCE, |_| addresses.clone());
        Job::between(devices_per_process, slices, transports, timeout)
    }

    /// Processes of these slices, each one a host of its own, whose links are said to be these.
    pub fn with_links(devices_per_process: &[u32], slices: &[u32], links: Links, timeout: Duration) -> Job {
        let (listeners, addresses) = listen(devices_per_process.len());
        let counts = (0..).zip(devices_per_process);
        let process_of = counts.flat_map(|(process, &count)| std::iter::repeat_n(process, count as usize)).collect();
        let hosts = (0..devices_per_process.len() as u32).collect();
        let cluster = Cluster::new(process_of, hosts, slices.to_vec(), links);
        let transports = connect(listeners, Paths::Tcp, |_| addresses.clone());
        Job::with(devices_per_process, slices, transports, |world, transport| {
            Communicator::with_cluster(world, transport, Limits { timeout }, cluster.clone()).unwrap()
        })
    }

    pub fn over(devices_per_process: &[u32], transports: Vec<Arc<Mesh>>, timeout: Duration) -> Job {
        Job::between(devices_per_process, &[], transports, timeout)
    }

    pub fn between(devices_per_process: &[u32], slices: &[u32], transports: Vec<Arc<Mesh>>, timeout: Duration) -> Job {
        Job::with(devices_per_process, slices, transports, |world, transport| {
            Communicator::new(world, transport, Limits { timeout }).unwrap()
        })
    }

    fn with(
        devices_per_process: &[u32],
        slices: &[u32],
        transports: Vec<Arc<Mesh>>,
        open: impl Fn(World, Option<Arc<dyn Transport>>) -> Communicator,
    ) -> Job {
        let mut transports = transports.into_iter().map(|mesh| mesh as Arc<dyn Transport>);
        let communicators = (0..devices_per_process.len())
            .map(|process| {
                let world = World {
                    process_index: process as u32,
                    devices_per_process: devices_per_process.to_vec(),
                    slices: slices.to_vec(),
                };
                open(world, transports.next())
            })
            .collect();
        Job { devices_per_process: devices_per_process.to_vec(), communicators }
    }

    pub fn device_count(&self) -> u32 {
        self.devices_per_process.iter().sum()
    }

    /// Process and local ordinal of each device.
    pub fn places(&self) -> Vec<(usize, u32)> {
        let per_process = self.devices_per_process.iter().enumerate();
        per_process.flat_map(|(process, &devices)| (0..devices).map(move |local| (process, local))).collect()
    }

    /// The same program on every process.
    pub fn program(&self, id: u64, specs: &[CollectiveSpec]) -> Vec<Arc<ProgramCollectives>> {
        self.communicators.iter().map(|communicator| communicator.program(id, specs.to_vec()).unwrap()).collect()
    }

    /// Every device runs one instruction on its operands.
    pub fn run(
        &self,
        programs: &[Arc<ProgramCollectives>],
        run: u64,
        spec: &CollectiveSpec,
        operands: &[Vec<Vec<u8>>],
    ) -> Vec<Outcome> {
        let places = self.places().into_iter().zip(operands);
        let pending: Vec<Pending> = places
            .map(|((process, local), operands)| Pending::enter(&programs[process], run, spec, local, operands.clone()))
            .collect();
        pending.into_iter().map(Pending::wait).collect()
    }
}

/// A call that owns its buffers.
pub struct Pending {
    results: Vec<Vec<u8>>,
    _operands: Vec<Vec<u8>>,
    done: mpsc::Receiver<Result<(), CollectiveError>>,
}

impl Pending {
    pub fn enter(
        program: &ProgramCollectives,
        run: u64,
        spec: &CollectiveSpec,
        local_device: u32,
        operands: Vec<Vec<u8>>,
    ) -> Pending {
        let mut results: Vec<Vec<u8>> = spec.results.iter().map(|array| vec![0xa5; array.size().unwrap()]).collect();
        let (tell, done) = mpsc::channel();
        // SAFETY: `Pending` keeps the buffers until the call is done (see `wait` and `drop`).
        let inputs = operands.iter().map(|bytes| unsafe { Input::new(bytes.as_ptr(), bytes.len()) }).collect();
        // SAFETY: as above.
        let outputs = results.iter_mut().map(|bytes| unsafe { Output::new(bytes.as_mut_ptr(), bytes.len()) }).collect();
        program.enter(run, spec.key, local_device, inputs, outputs, move |outcome| {
            let _ = tell.send(outcome);
        });
        Pending { results, _operands: operands, done }
    }

    pub fn wait(mut self) -> Outcome {
        let outcome = self.done.recv_timeout(PATIENCE).expect("the collective hangs");
        outcome.map(|()| std::mem::take(&mut self.results))
    }

    pub fn error(self) -> String {
        self.wait().unwrap_err().to_string()
    }

    pub fn is_done(&self) -> bool {
        !matches!(self.done.try_recv(), Err(mpsc::TryRecvError::Empty))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // After `wait`, the sender is gone and this returns at once.
        let _ = self.done.recv_timeout(PATIENCE);
    }
}
