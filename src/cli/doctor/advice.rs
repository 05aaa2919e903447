//! What to change, by what was found.

use spmd_run::cluster::host::Vendor;
use spmd_run::cluster::{Detected, Environment};
use spmd_run::rendezvous::JobToken;
use spmd_run::runtime::is_loopback;

use super::Report;

/// Below this, RDMA fabrics and TPUs cannot register their buffers.
const LOCKED_MEMORY: u64 = 64 << 20;
/// What Docker gives by default, which is too little for MPI.
const SMALL_SHARED_MEMORY: u64 = 64 << 20;
/// Room for connections to a thousand processes.
const OPEN_FILES: u64 = 1024;

/// One entry for each thing to change.
pub fn advice(report: &Report, detected: Option<&Detected>, environment: &Environment) -> Vec<String> {
    let mut all = Vec::new();
    of_job(detected, environment, &mut all);
    of_chips(report, environment, &mut all);
    let limits = &report.limits;
    if let Some(files) = limits.most_open_files.filter(|&files| files < OPEN_FILES) {
        all.push(format!(
            "a process may have {files} open files, and needs one for each other process: raise it with ulimit -Hn {OPEN_FILES}"
        ));
    }
    let has_fabric = report.chips.iter().any(|chip| chip.vendor == Vendor::Google)
        || environment.path("sys/class/infiniband").exists();
    if has_fabric && limits.locked_memory_bytes.is_some_and(|bytes| bytes < LOCKED_MEMORY) {
        all.push("fabrics and TPUs lock their buffers in memory: ulimit -l unlimited".to_owned());
    }
    let by_mpi = detected.is_some_and(|detected| detected.speaks_mpi);
    if by_mpi && limits.shared_memory_bytes.is_some_and(|bytes| bytes <= SMALL_SHARED_MEMORY) {
        all.push("/dev/shm is small for MPI: docker run --shm-size 1g, or an emptyDir of medium Memory".to_owned());
    }
    if limits.transparent_huge_pages.as_deref() == Some("never") {
        all.push(
            "large arrays are slow without huge pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
                .to_owned(),
        );
    }
    if let Some(error) = &report.plugin_error {
        all.push(error.clone());
    }
    all
}

fn of_job(detected: Option<&Detected>, environment: &Environment, all: &mut Vec<String>) {
    let is_set = |name: &str| environment.get(name).is_some();
    if is_set("SLURM_JOB_ID") && !is_set("SLURM_STEP_NODELIST") {
        all.push("this is an allocation of Slurm and no step of it: start the job with srun".to_owned());
    }
    if is_set("RAY_JOB_ID") && detected.is_none() {
        all.push(
            "Ray does not tell a task of others: set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in \
             one actor for each host"
                .to_owned(),
        );
    }
    let Some(detected) = detected.filter(|detected| detected.process_count != Some(1)) else { return };
    match &detected.coordinator {
        Err(_) if detected.speaks_mpi && cfg!(feature = "mpi") => {}
        Err(reason) => all.push(format!("{reason}: give --coordinator HOST:PORT")),
        Ok(coordinator) => {
            let is_loopback = is_loopback(coordinator);
            if detected.token.is_none() && !is_set(JobToken::VARIABLE) && !is_loopback {
                all.push(format!(
                    "the coordinator {coordinator} can be reached from other machines: set {} to the same secret for \
                     every process, made with `openssl rand -hex 32`",
                    JobToken::VARIABLE
                ));
            }
            if is_loopback && detected.local.is_some() && !detected.on_one_host() {
                all.push(format!("processes on other hosts cannot reach the coordinator {coordinator}"));
            }
        }
    }
    if detected.process_count.is_none() {
        all.push(format!("{} does not tell how many processes there are: give -n", detected.scheduler));
    }
}

fn of_chips(report: &Report, environment: &Environment, all: &mut Vec<String>) {
    let plugin = report.plugin.as_ref().map(|plugin| plugin.path.display().to_string()).unwrap_or_default();
    let count = |vendor| report.chips.iter().filter(|chip| chip.vendor == vendor).count();
    for (vendor, what, known, mark) in
        [(Vendor::Google, "TPU chips", "tpu", "libtpu"), (Vendor::Nvidia, "NVIDIA GPUs", "cuda12", "cuda")]
    {
        let chips = count(vendor);
        if chips > 0 && !plugin.contains(mark) {
            all.push(format!("this host has {chips} {what} that the plugin does not use: --plugin {known}"));
        }
    }
    // Other makers' chips have such files too.
    for holder in report.holders.iter().filter(|_| count(Vendor::Google) > 0) {
        all.push(format!(
            "process {} ({}) has {} open, and a TPU chip is one process's: end it, or leave that chip out with --chips",
            holder.pid, holder.command, holder.device
        ));
    }
    const VISIBLE: &str = "TPU_VISIBLE_CHIPS";
    let chips = count(Vendor::Google);
    if let Some(visible) = environment.get(VISIBLE).filter(|_| chips > 0) {
        let is_chip = |id: &str| id.trim().parse::<usize>().is_ok_and(|id| id < chips);
        if let Some(wrong) = visible.split(',').find(|id| !is_chip(id)) {
            all.push(format!("{VISIBLE}={visible}: '{wrong}' is no chip of this host, which has 0 to {}", chips - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use spmd_run::cluster::{self, host};

    use super::*;

    fn advice_for(variables: &[(&str, &str)], change: impl FnOnce(&mut Report)) -> Vec<String> {
        let environment = Environment::new(variables.iter().copied());
        let detected = cluster::detect(&environment).unwrap();
        let mut report = Report {
            joins: None,
            error: None,
            schedulers: vec![],
            plugin: None,
            plugin_error: None,
            chips: vec![],
            holders: vec![],
            interfaces: vec![],
            address_for_peers: None,
            limits: host::Limits::default(),
            mpi: false,
            advice: vec![],
        };
        change(&mut report);
        advice(&report, detected.as_ref(), &environment)
    }

    #[test]
    fn nothing_is_wrong_with_nothing() {
        assert!(advice_for(&[], |_| ()).is_empty());
    }

    #[test]
    fn jobs() {
        let slurm = advice_for(&[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "4")], |_| ());
        insta::assert_snapshot!(slurm.join("\n"), @"this is an allocation of Slurm and no step of it: start the job with srun");
        let ray = advice_for(&[("RAY_JOB_ID", "02000000")], |_| ());
        insta::assert_snapshot!(ray.join("\n"), @"Ray does not tell a task of others: set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in one actor for each host");
        let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node-a"), ("MASTER_PORT", "29500")];
        let advice = advice_for(&torchrun, |_| ());
        insta::assert_snapshot!(advice.join("\n"), @"the coordinator node-a:29500 can be reached from other machines: set SPMD_JOB_TOKEN to the same secret for every process, made with `openssl rand -hex 32`");
        let with_token = [&torchrun[..], &[(JobToken::VARIABLE, "0123456789abcdef")]].concat();
        assert!(advice_for(&with_token, |_| ()).is_empty());
        let pod = advice_for(&[("JOB_COMPLETION_INDEX", "1"), ("HOSTNAME", "mlp-1")], |_| ());
        assert!(pod[0].contains("headless service") && pod[1].contains("give -n"), "{pod:?}");
    }

    #[test]
    fn loopback_coordinators() {
        for coordinator in ["127.0.0.1:1", "127.0.1.1:1", "[::1]:1", "localhost:1"] {
            assert!(is_loopback(coordinator), "{coordinator}");
        }
        assert!(!is_loopback("[fd00::2]:1") && !is_loopback("node:1"));
        let hosts =
            [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("JAX_COORDINATOR_ADDRESS", "localhost:1")];
        let hosts = [&hosts[..], &[("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]].concat();
        insta::assert_snapshot!(advice_for(&hosts, |_| ()).join("\n"), @"processes on other hosts cannot reach the coordinator localhost:1");
    }

    #[test]
    fn chips() {
        let chips = |report: &mut Report| {
            let chip = |address: &str| host::Chip {
                address: address.to_owned(),
                vendor: Vendor::Google,
                kind: "TPU v5e".to_owned(),
            };
            report.chips = vec![chip("0000:00:04.0"), chip("0000:00:05.0")];
            report.holders =
                vec![host::Holder { device: "/dev/vfio/1".to_owned(), pid: 4711, command: "python3".to_owned() }];
            report.limits.locked_memory_bytes = Some(64 << 10);
        };
        let advice = advice_for(&[("TPU_VISIBLE_CHIPS", "1,2"), ("TPU_SKIP_MDS_QUERY", "1")], chips);
        insta::assert_snapshot!(advice.join("\n"), @r"
        this host has 2 TPU chips that the plugin does not use: --plugin tpu
        process 4711 (python3) has /dev/vfio/1 open, and a TPU chip is one process's: end it, or leave that chip out with --chips
        TPU_VISIBLE_CHIPS=1,2: '2' is no chip of this host, which has 0 to 1
        fabrics and TPUs lock their buffers in memory: ulimit -l unlimited
        ");
    }

    #[test]
    fn limits() {
        let advice = advice_for(&[], |report| {
            report.limits.most_open_files = Some(256);
            report.limits.transparent_huge_pages = Some("never".to_owned());
        });
        insta::assert_snapshot!(advice.join("\n"), @r"
        a process may have 256 open files, and needs one for each other process: raise it with ulimit -Hn 1024
        large arrays are slow without huge pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
        ");
    }
}
