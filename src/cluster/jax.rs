//! The variables of `jax.distributed.initialize`.

use super::{ClusterError, Detected, Environment, Part, Scheduler, environment::wrong};

const COORDINATOR: &str = "JAX_COORDINATOR_ADDRESS";
const COUNT: &str = "JAX_NUM_PROCESSES";
const INDEX: &str = "JAX_PROCESS_ID";

pub(super) const VARIABLES: &[&str] = &[COORDINATOR, COUNT, INDEX];

const ADVICE: &str = ": a process needs all three of JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID";
const SCHEDULER: Scheduler = Scheduler::Jax;

pub(super) fn detect(environment: &Environment) -> Result<Option<Detected>, ClusterError> {
    let Some(set) = [COUNT, INDEX].into_iter().find(|name| environment.get(name).is_some()) else { return Ok(None) };
    environment.with(SCHEDULER, set, COORDINATOR, ADVICE)?;
    let count = environment.number_with(SCHEDULER, set, COUNT, ADVICE)?;
    let index = environment.number_with(SCHEDULER, set, INDEX, ADVICE)?;
    let place = Part::new(environment, SCHEDULER, (INDEX, index), (COUNT, count))?;
    let coordinator = coordinator(environment)?.unwrap_or_default();
    Ok(Some(Detected::new(SCHEDULER, place, Ok(coordinator.to_owned()))))
}

/// The coordinator that the user chose, also for the job of another scheduler.
pub(super) fn coordinator(environment: &Environment) -> Result<Option<&str>, ClusterError> {
    match environment.get(COORDINATOR) {
        Some(address) if !address.contains(':') => Err(wrong(COORDINATOR, address, "it must be HOST:PORT")),
        address => Ok(address),
    }
}

/// The error of an address for which nobody says which process this is.
pub(super) fn only_coordinator(environment: &Environment) -> Result<(), ClusterError> {
    match coordinator(environment)? {
        Some(_) => environment.with(SCHEDULER, COORDINATOR, COUNT, ADVICE).map(drop),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Result<Option<Detected>, ClusterError> {
        super::detect(&Environment::new(variables.iter().copied()))
    }

    #[test]
    fn all_three_are_needed() {
        let detected = detect(&[(COORDINATOR, "10.0.0.1:1234"), (COUNT, "2"), (INDEX, "1")]).unwrap().unwrap();
        insta::assert_snapshot!(detected, @"JAX's variables: process 1 of 2, coordinator 10.0.0.1:1234");
        insta::assert_snapshot!(detect(&[(COUNT, "2"), (INDEX, "1")]).unwrap_err(), @"JAX's variables: JAX_NUM_PROCESSES=2 is set but JAX_COORDINATOR_ADDRESS is not: a process needs all three of JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID");
        let error = detect(&[(COORDINATOR, "host"), (COUNT, "2"), (INDEX, "1")]).unwrap_err();
        insta::assert_snapshot!(error, @"JAX_COORDINATOR_ADDRESS=host: it must be HOST:PORT");
        assert!(detect(&[(COORDINATOR, "")]).unwrap().is_none());
    }
}
