//! Many steps leave nothing behind: no memory, no file descriptors, no threads. `SPMD_TEST_SOAK_STEPS=10000` takes longer.
//! This test program runs itself again as the controllers.

use std::path::PathBuf;
use std::time::Duration;

use spmd_run::hlo;
use spmd_run::host_array::{Fill, HostArray};
use spmd_run::launch::{ControllerEnv, Job, Outcome, run};
use spmd_run::rendezvous::{JoinOptions, Rendezvous};
use spmd_run::runtime::{Arguments, DataPlaneOptions, Executable, Plan, Runtime, World};
use spmd_run::transport::Carrier;
use spmd_run::transport::mesh::Choice;

const STEPS: &str = "SPMD_TEST_SOAK_STEPS";
const TRANSPORT: &str = "SPMD_TEST_SOAK_TRANSPORT";
const LONG: Duration = Duration::from_secs(60);
const PLAN: Plan = Plan { replicas: 4, partitions: 1, processes: 2, devices_per_process: 2 };

/// Collectives that are over at once and one that takes several pieces; between processes, inside them, and in a loop.
const PROGRAM: &str = "HloModule soak, replica_count=4

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

more {
  state = (s32[], f32[64]) parameter(0)
  trip = s32[] get-tuple-element(state), index=0
  three = s32[] constant(3)
  ROOT less = pred[] compare(trip, three), direction=LT
}

turn {
  state = (s32[], f32[64]) parameter(0)
  trip = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(trip, one)
  x = f32[64] get-tuple-element(state), index=1
  y = f32[64] all-reduce(x), replica_groups={{0,2},{1,3}}, to_apply=add
  ROOT result = (s32[], f32[64]) tuple(next, y)
}

ENTRY main {
  x = f32[64] parameter(0)
  large = f32[40000] parameter(1)
  zero = s32[] constant(0)
  state = (s32[], f32[64]) tuple(zero, x)
  looped = (s32[], f32[64]) while(state), condition=more, body=turn
  y = f32[64] get-tuple-element(looped), index=1
  gathered = f32[256] all-gather(y), replica_groups={{0,1,2,3}}, dimensions={0}
  sent = f32[64] collective-permute(y), source_target_pairs={{0,3},{3,0},{1,2}}
  inside = f32[64] all-reduce(sent), replica_groups={{0,1},{2,3}}, to_apply=add
  sum = f32[40000] all-reduce(large), replica_groups={{0,1,2,3}}, to_apply=add
  ROOT result = (f32[256], f32[64], f32[40000]) tuple(gathered, inside, sum)
}
";

/// What this process holds.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    resident_bytes: usize,
    descriptors: usize,
    threads: usize,
}

impl Holdings {
    fn now() -> Holdings {
        let entries = |folder| std::fs::read_dir(folder).unwrap().count();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")).unwrap();
        Holdings {
            resident_bytes: resident.parse::<usize>().unwrap() << 10,
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
        }
    }
}

/// Not a test of its own: a controller that steps.
#[test]
fn controller_process() {
    let Ok(transport) = std::env::var(TRANSPORT) else { return };
    let steps: usize = std::env::var(STEPS).map_or(750, |steps| steps.parse().unwrap());
    let place = ControllerEnv::from_env().unwrap().unwrap();
    let join = JoinOptions {
        host_coordinator: place.listener,
        token: place.token,
        ..JoinOptions::new(place.coordinator, place.process_index, place.process_count, LONG)
    };
    let world = World::of(Rendezvous::join(join).unwrap(), LONG);
    let transport = if transport == "tcp" { Choice::Tcp } else { Choice::Shm };
    let data_plane = DataPlaneOptions { transport: Carrier::Mesh(transport), ..DataPlaneOptions::default() };
    let plugin = std::env::var_os("PJRT_PLUGIN_LIBRARY_PATH").expect("set PJRT_PLUGIN_LIBRARY_PATH to a CPU plugin");
    let runtime = Runtime::open(world, &PathBuf::from(plugin), PLAN.devices_per_process, data_plane).unwrap();
    let program = hlo::load(PROGRAM.as_bytes(), "soak").unwrap();
    let executable = Executable::compile(&runtime, PLAN, Some(program)).unwrap();
    let mut arguments = arguments(&executable);
    // Pools and threads come to their full size.
    executable.run_steps(&mut arguments, steps / 5).unwrap();
    let before = Holdings::now();
    executable.run_steps(&mut arguments, steps).unwrap();
    let after = Holdings::now();
    eprintln!("{before:?}, {steps} steps later {after:?}");
    // Less than a pointer's worth for every step and buffer in 10,000 steps, and what an allocator may shift about.
    assert!(after.resident_bytes < before.resident_bytes + (4 << 20), "memory");
    assert!(after.descriptors <= before.descriptors, "file descriptors");
    // Those of the engine start when they are first needed.
    assert!(after.threads <= before.threads + 2, "threads");
    runtime.world().shutdown().unwrap();
    std::process::exit(0);
}

fn arguments(executable: &Executable<'_>) -> Arguments {
    let ones = |dims: &[usize], dtype| HostArray::filled(Fill::Ones, 0, dtype, dims).unwrap();
    let arrays: Vec<HostArray> =
        executable.parameters().iter().map(|parameter| ones(&parameter.dims_usize(), parameter.dtype)).collect();
    executable.load(&arrays).unwrap()
}

#[test]
fn steps_leave_nothing_behind() {
    for transport in ["shm", "tcp"] {
        let mut job = Job::new(PLAN.processes, std::env::current_exe().unwrap());
        job.args = ["--exact", "controller_process", "--nocapture"].map(Into::into).into();
        job.envs = vec![(TRANSPORT.into(), transport.into())];
        let outcome = run(&job).unwrap();
        assert_eq!(outcome, Outcome::Done, "{transport}: {outcome}");
    }
}
