//! Steps of Slurm jobs: what `srun` starts.

use super::{ClusterError, Detected, Environment, Part, Scheduler, environment::wrong, port};

/// Only set inside a step; a batch script or an allocation's shell is not a process of a job.
pub(super) const NODE_LIST: &str = "SLURM_STEP_NODELIST";
const JOB: &str = "SLURM_JOB_ID";
const RANK: &str = "SLURM_PROCID";
/// The step's own count, which differs from the job's when the step uses a part of it.
const STEP_TASKS: &str = "SLURM_STEP_NUM_TASKS";
const TASKS: &str = "SLURM_NTASKS";
const LOCAL_RANK: &str = "SLURM_LOCALID";
const NODE: &str = "SLURM_NODEID";
/// `2(x3),1`: tasks of each node.
const TASKS_PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
/// Set when Slurm acts as MPI's process manager.
const PMI: [&str; 2] = ["PMIX_RANK", "PMI_FD"];

pub(super) const VARIABLES: &[&str] =
    &[JOB, NODE_LIST, RANK, STEP_TASKS, TASKS, LOCAL_RANK, NODE, TASKS_PER_NODE, port::VARIABLE];

const ADVICE: &str = ": srun sets both, has one been removed?";
const SCHEDULER: Scheduler = Scheduler::Slurm;

pub(super) fn detect(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    let Some(nodes) = environment.get(NODE_LIST) else { return Ok(None) };
    let job = environment.with(SCHEDULER, NODE_LIST, JOB, ADVICE)?;
    let rank = environment.number_with(SCHEDULER, NODE_LIST, RANK, ADVICE)?;
    let (name, count) = match environment.number(STEP_TASKS)? {
        Some(count) => (STEP_TASKS, count),
        None => (TASKS, environment.number_with(SCHEDULER, NODE_LIST, TASKS, ADVICE)?),
    };
    let place = Part::new(environment, SCHEDULER, (RANK, rank), (name, count))?;
    let local_rank = environment.number_with(SCHEDULER, NODE_LIST, LOCAL_RANK, ADVICE)?;
    let local = match (environment.get(TASKS_PER_NODE), environment.number(NODE)?) {
        (Some(text), Some(node)) => {
            let tasks = tasks_of_node(text, node)
                .ok_or_else(|| wrong(TASKS_PER_NODE, text, format!("it does not tell the tasks of node {node}")))?;
            Some(Part::new(environment, SCHEDULER, (LOCAL_RANK, local_rank), (TASKS_PER_NODE, tasks))?)
        }
        _ => None,
    };
    if local.is_some_and(|local| local.count > count) {
        let rule = "a node has no more tasks than the step";
        return Err(environment.contradiction(SCHEDULER, TASKS_PER_NODE, name, rule));
    }
    let first = first_host(nodes).map_err(|reason| wrong(NODE_LIST, nodes, reason))?;
    let job = job.parse().map_err(|_| wrong(JOB, job, "it must be a whole number"))?;
    let port = port::of_job(environment, job)?;
    let mut detected = Detected { local, ..Detected::new(SCHEDULER, place, Err(String::new())) };
    detected.coordinator = Ok(port::join(if detected.on_one_host() { "127.0.0.1" } else { &first }, port));
    detected.speaks_mpi = PMI.into_iter().any(|name| environment.get(name).is_some());
    Ok(Some(detected))
}

/// The first node of a list such as `node001,host2` or `rack[1-2]-n[001,007-015],host2`.
fn first_host(nodes: &str) -> Result<String, String> {
    let mut inside = false;
    let mut hosts = nodes.split(move |letter| {
        inside = letter == '[' || inside && letter != ']';
        letter == ',' && !inside
    });
    let first = first_of(hosts.next().unwrap_or_default())?;
    hosts.try_for_each(|host| first_of(host).map(drop))?;
    Ok(first)
}

/// The first node of `n[7-9]-ib`.
fn first_of(nodes: &str) -> Result<String, String> {
    let (mut first, mut rest) = (String::new(), nodes);
    while let Some((name, numbers)) = rest.split_once('[') {
        let (numbers, others) = numbers.split_once(']').ok_or("a bracket is not closed")?;
        first += name;
        first += first_number(numbers).ok_or_else(|| format!("[{numbers}] is no list of numbers"))?;
        rest = others;
    }
    first += rest;
    match first.contains(']') {
        true => Err("a bracket is not opened".to_owned()),
        false if first.is_empty() => Err("a name is empty".to_owned()),
        false => Ok(first),
    }
}

/// The first of `001,007-015`, with its zeros.
fn first_number(numbers: &str) -> Option<&str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let ranges = numbers.split(',').map(|range| range.split_once('-').unwrap_or((range, range)));
    let mut firsts = ranges.map(|(first, last)| (is_number(first) && is_number(last)).then_some(first));
    let first = firsts.next()??;
    firsts.all(|number| number.is_some()).then_some(first)
}

/// How many tasks a node has, by `2(x3),1`.
fn tasks_of_node(text: &str, node: u32) -> Option<u32> {
    let mut before = 0u32;
    for entry in text.split(',') {
        let (tasks, nodes) = match entry.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (entry, 1u32),
        };
        before = before.checked_add(nodes)?;
        if node < before {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Result<Option<Detected>, ClusterError> {
        super::detect(&Environment::new(variables.iter().copied()))
    }

    const STEP: [(&str, &str); 9] = [
        (JOB, "1591154"),
        (NODE_LIST, "node[001-002]"),
        ("SLURM_STEP_NUM_NODES", "2"),
        (RANK, "3"),
        (TASKS, "4"),
        (STEP_TASKS, "4"),
        (LOCAL_RANK, "1"),
        (NODE, "1"),
        (TASKS_PER_NODE, "2(x2)"),
    ];

    fn changed(name: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
        STEP.into_iter().map(|(other, old)| (other, if other == name { value } else { old })).collect()
    }

    #[test]
    fn a_step_meets_on_its_first_node() {
        let detected = detect(&STEP).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"Slurm: process 3 of 4, 1 of 2 on this host, coordinator node001:63346");
        let one_node =
            detect(&[(TASKS_PER_NODE, "4"), (NODE, "0")].iter().chain(&STEP[..7]).copied().collect::<Vec<_>>());
        assert_eq!(one_node.unwrap().unwrap().coordinator.unwrap(), "127.0.0.1:63346");
        // What a batch script sees.
        assert!(detect(&[(JOB, "7"), (RANK, "0"), (TASKS, "4"), (LOCAL_RANK, "0")]).unwrap().is_none());
    }

    #[test]
    fn a_part_of_the_allocation() {
        let detected = detect(&changed(TASKS, "8")).unwrap().unwrap();
        assert_eq!(detected.process_count, Some(4));
    }

    #[test]
    fn node_lists() {
        let lists = [
            ("node001", "node001"),
            ("node001,host2", "node001"),
            ("n[0-2,5],m1", "n0"),
            ("n[5,0-2],m1", "n5"),
            ("node[001-015],host2", "node001"),
            ("node[001,007-015],host2", "node001"),
            ("a[01-03]b[1-2]", "a01b1"),
            ("rack[1-2]-n[001-010,020]", "rack1-n001"),
            ("n[7]-ib,host", "n7-ib"),
            ("cn-1.example.org,cn-2.example.org", "cn-1.example.org"),
        ];
        for (list, first) in lists {
            assert_eq!(first_host(list).unwrap(), first, "{list}");
        }
        let malformed = [
            ("", "a name is empty"),
            (",", "a name is empty"),
            ("n1,", "a name is empty"),
            ("n1,,n2", "a name is empty"),
            ("[", "a bracket is not closed"),
            ("n[1", "a bracket is not closed"),
            ("n1,m[1,2", "a bracket is not closed"),
            ("n1]", "a bracket is not opened"),
            ("n[]", "[] is no list of numbers"),
            ("n[1,]", "[1,] is no list of numbers"),
            ("n[-2]", "[-2] is no list of numbers"),
            ("n[1-]", "[1-] is no list of numbers"),
            ("n[1-2-3]", "[1-2-3] is no list of numbers"),
            ("n[a-c]", "[a-c] is no list of numbers"),
            ("n[[1]]", "[[1] is no list of numbers"),
            ("n1,m[1-x]", "[1-x] is no list of numbers"),
        ];
        for (list, reason) in malformed {
            assert_eq!(first_host(list).unwrap_err(), reason, "{list}");
        }
    }

    #[test]
    fn tasks_per_node() {
        let tasks = |node| tasks_of_node("4(x2),3,1(x4000000000)", node);
        assert_eq!([0, 1, 2, 3, 4_000_000_002].map(tasks), [Some(4), Some(4), Some(3), Some(1), Some(1)]);
        for malformed in ["", "x", "2(x", "2(x2", "2(xx)", "1(x4294967295),1(x2)"] {
            assert_eq!(tasks_of_node(malformed, u32::MAX), None, "{malformed}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        insta::assert_snapshot!(detect(&STEP[1..]).unwrap_err(), @"Slurm: SLURM_STEP_NODELIST=node[001-002] is set but SLURM_JOB_ID is not: srun sets both, has one been removed?");
        insta::assert_snapshot!(detect(&changed(RANK, "4")).unwrap_err(), @"Slurm: SLURM_PROCID=4 and SLURM_STEP_NUM_TASKS=4 contradict each other: an index is below its count");
        insta::assert_snapshot!(detect(&changed(LOCAL_RANK, "2")).unwrap_err(), @"Slurm: SLURM_LOCALID=2 and SLURM_STEP_TASKS_PER_NODE=2(x2) contradict each other: an index is below its count");
        insta::assert_snapshot!(detect(&changed(NODE, "2")).unwrap_err(), @"SLURM_STEP_TASKS_PER_NODE=2(x2): it does not tell the tasks of node 2");
        insta::assert_snapshot!(detect(&changed(JOB, "j")).unwrap_err(), @"SLURM_JOB_ID=j: it must be a whole number");
        insta::assert_snapshot!(detect(&changed(NODE_LIST, "[")).unwrap_err(), @"SLURM_STEP_NODELIST=[: a bracket is not closed");
        insta::assert_snapshot!(detect(&changed(TASKS_PER_NODE, "2,6")).unwrap_err(), @"Slurm: SLURM_STEP_TASKS_PER_NODE=2,6 and SLURM_STEP_NUM_TASKS=4 contradict each other: a node has no more tasks than the step");
    }
}
