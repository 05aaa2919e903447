//! How a process becomes a member of its job: the rendezvous, and where it can be reached for data.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use crate::cluster::host;
use crate::collective::Algorithm;
use crate::launch::phase;
use crate::rendezvous::{self, JoinError, JoinOptions, Rendezvous};
use crate::trace;
use crate::transport::Carrier;
use crate::transport::mesh::Choice;

use super::{DataPlaneOptions, World};

/// Meets the other processes of the job, and is reached by them at the address `bind` or else the one that leads to the
/// coordinator. A process then waits for others for `stall_timeout` at most.
///
/// # Errors
/// Not all processes came, or they are no members of one job.
pub fn join(
    options: JoinOptions,
    bind: Option<IpAddr>,
    stall_timeout: Duration,
    transport: Choice,
) -> Result<(World, DataPlaneOptions), JoinError> {
    let asked = bind.filter(|address| !address.is_unspecified());
    let towards_coordinator = asked.unwrap_or_else(|| address_towards(&options.coordinator));
    let secret = options.token.as_ref().map(|token| token.derive_key("spmd-run 2026 data plane"));
    phase::come();
    let rendezvous = {
        let _phase = trace::phase("rendezvous");
        Rendezvous::join(options)?
    };
    let on_several_hosts = rendezvous.hosts().iter().any(|host| Some(host) != rendezvous.hosts().first());
    // Strangers may knock at an address that other hosts reach.
    let is_hidden = asked.is_none() && towards_coordinator.is_loopback() && on_several_hosts && secret.is_some();
    let data_plane = DataPlaneOptions {
        address: if is_hidden { host::address_for_peers() } else { towards_coordinator },
        secret: secret.unwrap_or([0; 32]),
        identity: rendezvous.identity().cloned(),
        transport: Carrier::Mesh(transport),
        algorithm: Algorithm::Auto,
        links: None,
    };
    Ok((World::of(rendezvous, stall_timeout), data_plane))
}

/// Opens the coordinator's socket. A host's name often leads to a loopback address on that host itself (127.0.1.1), where
/// processes of others could not reach it: then the socket listens on all addresses, if the job has a secret.
///
/// # Errors
/// The address cannot be listened on.
pub fn listen_for_peers(coordinator: &str, is_shared: bool) -> Result<TcpListener, JoinError> {
    let listener = rendezvous::listen(coordinator)?;
    let address = listener.local_addr().ok().filter(|address| address.ip().is_loopback() && !is_loopback(coordinator));
    match address {
        Some(address) if is_shared => {
            drop(listener);
            rendezvous::listen(&SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()).to_string())
        }
        Some(address) => {
            tracing::warn!(
                "the coordinator's host leads to the loopback address {address} here: processes of other hosts cannot \
                 reach it"
            );
            Ok(listener)
        }
        None => Ok(listener),
    }
}

/// Whether `HOST:PORT` says that it is a loopback address, on whichever host.
pub fn is_loopback(address: &str) -> bool {
    let is_loopback = address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback());
    is_loopback || address.starts_with("localhost:")
}

/// The address of the interface that leads to the coordinator; loopback where that cannot be told.
fn address_towards(coordinator: &str) -> IpAddr {
    let resolved = coordinator.to_socket_addrs().into_iter().flatten();
    resolved.map(host::address_towards).find_map(Result::ok).unwrap_or(Ipv4Addr::LOCALHOST.into())
}
