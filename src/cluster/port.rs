//! Ports for coordinators that nobody chose.

use super::{ClusterError, Environment, environment::wrong};

/// The variable by which JAX's users choose a port themselves.
pub const VARIABLE: &str = "JAX_COORDINATOR_PORT";

const PORTS: u64 = 1 << 12;

/// JAX's choice for a job: one of the last 4096 ports, so that two jobs rarely have the same. `JAX_COORDINATOR_PORT` goes
/// first.
pub fn of_job(environment: &Environment, job: u64) -> Result<u16, ClusterError> {
    let first = u64::from(u16::MAX) + 1 - PORTS;
    // Below 2^16 by construction.
    chosen_or(environment, (first + job % PORTS) as u16)
}

/// `JAX_COORDINATOR_PORT`, else this one.
pub fn chosen_or(environment: &Environment, port: u16) -> Result<u16, ClusterError> {
    let Some(value) = environment.get(VARIABLE) else { return Ok(port) };
    match value.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(wrong(VARIABLE, value, "it must be a port, 1 to 65535")),
    }
}

/// The host of `HOST` or `HOST:PORT`, where an IPv6 address may stand in brackets.
pub fn host_of(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => host,
        _ => address,
    }
}

/// `HOST:PORT`
pub fn join(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
