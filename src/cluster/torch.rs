//! The variables of `torch.distributed`, which torchrun, Ray Train, Kubeflow and others set.

use super::{ClusterError, Detected, Environment, Part, Scheduler, environment::wrong, port};

const RANK: &str = "RANK";
const SIZE: &str = "WORLD_SIZE";
const HOST: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";
const LOCAL_RANK: &str = "LOCAL_RANK";
const LOCAL_SIZE: &str = "LOCAL_WORLD_SIZE";
/// torchrun's agent listens at `MASTER_PORT` itself.
const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// Set in every worker process of Ray.
const RAY_JOB: &str = "RAY_JOB_ID";

pub(super) const VARIABLES: &[&str] = &[RANK, SIZE, HOST, PORT, LOCAL_RANK, LOCAL_SIZE, AGENT_STORE, port::VARIABLE];
pub(super) const RAY_VARIABLES: &[&str] = &[RAY_JOB, RANK, SIZE, HOST, PORT, LOCAL_RANK, LOCAL_SIZE, port::VARIABLE];

pub(super) fn detect(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    if environment.get(RAY_JOB).is_some() { Ok(None) } else { place(environment, Scheduler::Torchrun) }
}

/// A plain task of Ray is no process of a job: nothing tells it of others.
pub(super) fn detect_ray(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    if environment.get(RAY_JOB).is_some() { place(environment, Scheduler::Ray) } else { Ok(None) }
}

fn place(environment: &Environment, scheduler: Scheduler) -> Result<Option<Detected>, ClusterError> {
    // RANK and WORLD_SIZE alone are names that anyone may use.
    if environment.get(HOST).is_none() || environment.get(RANK).or(environment.get(SIZE)).is_none() {
        return Ok(None);
    }
    let advice = ": a process needs all four of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT";
    let rank = environment.number_with(scheduler, HOST, RANK, advice)?;
    let size = environment.number_with(scheduler, HOST, SIZE, advice)?;
    let place = Part::new(environment, scheduler, (RANK, rank), (SIZE, size))?;
    let local = match (environment.number(LOCAL_RANK)?, environment.number(LOCAL_SIZE)?) {
        (Some(rank), Some(size)) => Some(Part::new(environment, scheduler, (LOCAL_RANK, rank), (LOCAL_SIZE, size))?),
        _ => None,
    };
    let host = environment.with(scheduler, RANK, HOST, advice)?;
    let text = environment.with(scheduler, HOST, PORT, advice)?;
    let port: u16 = text.parse().map_err(|_| wrong(PORT, text, "it must be a port, 1 to 65535"))?;
    let is_taken = environment.get(AGENT_STORE).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let port = if is_taken { port::of_job(environment, port.into())? } else { port::chosen_or(environment, port)? };
    Ok(Some(Detected { local, ..Detected::new(scheduler, place, Ok(port::join(host, port))) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TORCHRUN: [(&str, &str); 9] = [
        (RANK, "1"),
        (SIZE, "4"),
        (HOST, "node-a"),
        (PORT, "29500"),
        (LOCAL_RANK, "1"),
        (LOCAL_SIZE, "2"),
        (AGENT_STORE, "True"),
        ("TORCHELASTIC_RUN_ID", "none"),
        ("GROUP_RANK", "0"),
    ];

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(variables.iter().copied())
    }

    #[test]
    fn torchrun_keeps_its_port() {
        let detected = detect(&environment(&TORCHRUN)).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"torchrun: process 1 of 4, 1 of 2 on this host, coordinator node-a:62268");
        // Kubeflow has no agent.
        let detected = detect(&environment(&TORCHRUN[..4])).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"torchrun: process 1 of 4, coordinator node-a:29500");
    }

    #[test]
    fn ray_train() {
        let ray: Vec<_> = TORCHRUN[..6].iter().copied().chain([(RAY_JOB, "02000000")]).collect();
        let detected = detect_ray(&environment(&ray)).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"Ray: process 1 of 4, 1 of 2 on this host, coordinator node-a:29500");
        assert!(detect(&environment(&ray)).unwrap().is_none());
        assert!(detect_ray(&environment(&[(RAY_JOB, "02000000")])).unwrap().is_none());
    }

    #[test]
    fn what_is_missing_is_named() {
        let detect = |variables: &[(&str, &str)]| super::detect(&environment(variables));
        assert!(detect(&[(RANK, "3"), (SIZE, "4")]).unwrap().is_none());
        insta::assert_snapshot!(detect(&TORCHRUN[1..4]).unwrap_err(), @"torchrun: MASTER_ADDR=node-a is set but RANK is not: a process needs all four of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
        insta::assert_snapshot!(detect(&TORCHRUN[..3]).unwrap_err(), @"torchrun: MASTER_ADDR=node-a is set but MASTER_PORT is not: a process needs all four of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
        let error = detect(&[(RANK, "4"), (SIZE, "4"), (HOST, "a"), (PORT, "1")]).unwrap_err();
        insta::assert_snapshot!(error, @"torchrun: RANK=4 and WORLD_SIZE=4 contradict each other: an index is below its count");
        let error = detect(&[(RANK, "0"), (SIZE, "4"), (HOST, "a"), (PORT, "70000")]).unwrap_err();
        insta::assert_snapshot!(error, @"MASTER_PORT=70000: it must be a port, 1 to 65535");
    }
}
