//! How a process becomes a member of its job: the rendezvous, and where it can be reached for data.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use crate::cluster::host;
use crate::rendezvous::{self, JoinError, JoinOptions, Rendezvous};
use crate::transport::Carrier;
use crate::transport::mesh::Choice;

use super::{DataPlaneOptions, World};

/// Meets the other processes of the job. A process then waits for others for `stall_timeout` at most.
///
/// # Errors
/// Not all processes came, or they are no members of one job.
pub fn join(
    options: JoinOptions,
    stall_timeout: Duration,
    transport: Choice,
) -> Result<(World, DataPlaneOptions), JoinError> {
    let towards_coordinator = address_towards(&options.coordinator);
    let secret = options.token.as_ref().map(|token| token.derive_key("spmd-run 2026 data plane"));
    let rendezvous = Rendezvous::join(options)?;
    let on_several_hosts = rendezvous.hosts().iter().any(|host| Some(host) != rendezvous.hosts().first());
    // Strangers may knock at an address that other hosts reach.
    let is_hidden = towards_coordinator.is_loopback() && on_several_hosts && secret.is_some();
    let data_plane = DataPlaneOptions {
        address: if is_hidden { host::address_for_peers() } else { towards_coordinator },
        secret: secret.unwrap_or([0; 32]),
        transport: Carrier::Mesh(transport),
    };
    Ok((World::of(rendezvous, stall_timeout), data_plane))
}

/// Opens the coordinator's socket. A host's name often leads to a loopback address on that host itself, where processes of
/// others could not reach it: then the socket listens on all addresses, if the job has a secret.
///
/// # Errors
/// The address cannot be listened on.
pub fn listen_for_peers(coordinator: &str, is_shared: bool) -> Result<TcpListener, JoinError> {
    let listener = rendezvous::listen(coordinator)?;
    let address = listener.local_addr().ok().filter(|address| is_shared && address.ip().is_loopback());
    match address {
        Some(address) if !coordinator.starts_with("localhost:") && coordinator.parse::<SocketAddr>().is_err() => {
            drop(listener);
            rendezvous::listen(&SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()).to_string())
        }
        _ => Ok(listener),
    }
}

/// The address of the interface that leads to the coordinator; loopback where that cannot be told.
fn address_towards(coordinator: &str) -> IpAddr {
    // Connecting a datagram socket sends nothing: it only chooses a route.
    let route = UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| {
        socket.connect(coordinator)?;
        socket.local_addr()
    });
    route.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}
