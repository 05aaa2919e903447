//! Options on the job's control plane: where processes listen, and how the job is watched.

use std::io::{self, IsTerminal};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};

use clap::Args;
use spmd_run::cluster::host::{self, Interface};
use spmd_run::rendezvous::{self, JoinOptions};
use spmd_run::runtime;

use super::Failure;
use super::job::join_failure;

#[derive(Args)]
pub struct ControlOptions {
    /// Address of this host that this process listens on, for the coordinator and for data [default: the one that leads to
    /// the coordinator]
    #[arg(long, value_name = "ADDR", conflicts_with = "interface")]
    bind: Option<IpAddr>,

    /// As --bind, by the name of the network interface
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,

    /// Serve the job's status to Prometheus at this address, on the host of process 0 and to anyone who asks
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    metrics: Option<String>,
}

impl ControlOptions {
    /// The address to listen on, if one was asked for.
    pub fn address(&self) -> Result<Option<IpAddr>, Failure> {
        let Some(name) = &self.interface else { return Ok(self.bind) };
        let interfaces = host::interfaces().map_err(Failure::program)?;
        of_interface(name, &interfaces).map(Some).map_err(Failure::usage)
    }

    /// Opens the coordinator's socket at its port, where others are to find it. `is_shared` if processes of other hosts
    /// may come, which takes a token.
    pub fn listen(&self, coordinator: &str, is_shared: bool) -> Result<TcpListener, Failure> {
        let listener = match (self.address()?, coordinator.rsplit_once(':')) {
            (Some(address), Some((_, port))) => match port.parse() {
                Ok(port) => rendezvous::listen(&SocketAddr::new(address, port).to_string()),
                Err(_) => rendezvous::listen(coordinator),
            },
            _ => runtime::listen_for_peers(coordinator, is_shared),
        };
        listener.map_err(join_failure)
    }

    /// Whether the job is watched from outside, which takes a coordinator.
    pub fn is_watched(&self) -> bool {
        self.metrics.is_some()
    }

    /// Adds what process 0 does for those who watch the job.
    pub fn watch(&self, mut options: JoinOptions) -> Result<JoinOptions, Failure> {
        options.live = io::stderr().is_terminal();
        if options.process_index == 0
            && let Some(address) = &self.metrics
        {
            let wrong = |error: io::Error| {
                Failure::usage(match error.kind() {
                    io::ErrorKind::AddrNotAvailable => {
                        format!("--metrics {address}: this is no address of the host of process 0")
                    }
                    _ => format!("--metrics {address}: {error}"),
                })
            };
            let resolved: Vec<SocketAddr> = address.to_socket_addrs().map_err(wrong)?.collect();
            let listener = TcpListener::bind(&*resolved).map_err(wrong)?;
            let address = listener.local_addr().map_err(wrong)?;
            tracing::info!("metrics at http://{address}/metrics");
            options.metrics = Some(listener);
        }
        Ok(options)
    }
}

/// What may turn out to be no address of the host of process 0, yet has the form of one.
fn host_and_port(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    if matches!(port, Some(Ok(_))) { Ok(text.to_owned()) } else { Err("it takes HOST:PORT".to_owned()) }
}

/// An interface's address, IPv4 first.
fn of_interface(name: &str, all: &[Interface]) -> Result<IpAddr, String> {
    let mut own: Vec<&Interface> = all.iter().filter(|interface| interface.name == name).collect();
    own.sort_by_key(|interface| interface.address.is_ipv6());
    match own.first() {
        Some(interface) if interface.is_up => Ok(interface.address),
        Some(_) => Err(format!("--interface {name}: it is down")),
        None => {
            let mut names: Vec<&str> = all.iter().map(|interface| &*interface.name).collect();
            names.sort_unstable();
            names.dedup();
            Err(format!(
                "--interface {name}: this host has no such interface with an address, but {}",
                names.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_an_address() {
        let interface = |name: &str, address: &str, is_up| Interface {
            name: name.into(),
            address: address.parse().unwrap(),
            is_up,
            speed: None,
        };
        let all = [
            interface("lo", "127.0.0.1", true),
            interface("eth0", "fd00::2", true),
            interface("eth0", "192.0.2.2", true),
            interface("eth1", "192.0.2.9", false),
        ];
        assert_eq!(of_interface("eth0", &all), Ok("192.0.2.2".parse().unwrap()));
        insta::assert_snapshot!(of_interface("eth1", &all).unwrap_err(), @"--interface eth1: it is down");
        insta::assert_snapshot!(of_interface("eth2", &all).unwrap_err(), @"--interface eth2: this host has no such interface with an address, but eth0, eth1, lo");
    }
}
