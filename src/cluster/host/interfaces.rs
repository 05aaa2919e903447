//! Network interfaces and their addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use serde::Serialize;

/// An address of a network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// The interface, `eth0`.
    pub name: String,
    /// Its address; one entry for each.
    pub address: IpAddr,
    /// Whether it is in operation.
    pub is_up: bool,
    /// Its speed in Mbit/s, where the system knows one.
    pub speed: Option<u32>,
}

/// Names of interfaces that lead to containers and virtual machines of this host only.
const INSIDE: [&str; 8] = ["docker", "br-", "virbr", "veth", "cni", "flannel", "lxc", "podman"];

impl Interface {
    /// Whether other hosts may reach this address, as far as its name and kind tell.
    fn leads_outside(&self) -> bool {
        let is_link_local = match self.address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        self.is_up
            && !self.address.is_loopback()
            && !is_link_local
            && !INSIDE.iter().any(|prefix| self.name.starts_with(prefix))
    }
}

/// All addresses of this host, in the system's order.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the pointer is valid for writes.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut all = Vec::new();
    let mut next = first;
    // SAFETY: the system made this list, which ends in a null pointer and is not freed before the end of the function.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: the address is that of an entry of the list, or null.
        let Some(address) = (unsafe { ip_address(entry.ifa_addr) }) else { continue };
        // SAFETY: the name is a string that ends in a zero byte.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let running = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_uint;
        let is_up = entry.ifa_flags & running == running;
        all.push(Interface { speed: speed(&name), name, address, is_up });
    }
    // SAFETY: `getifaddrs` gave this pointer, and no reference into the list is left.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

/// What the driver says, in Mbit/s; virtual interfaces often have none.
fn speed(name: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?.trim().parse().ok()
}

/// # Safety
/// The address is null or of the kind that its family says.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by the contract of this function.
    let family = unsafe { address.as_ref() }?.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: by the contract of this function; the system aligns addresses for their kind.
            let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// The address at which other hosts reach this one most likely: the first that leads outside, IPv4 first. The loopback
/// address if there is none.
pub fn address_for_peers() -> IpAddr {
    best(&interfaces().unwrap_or_default()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// This host's address on the way to another one's.
///
/// # Errors
/// No way leads there.
pub fn address_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Connecting a datagram socket sends nothing: it only chooses a route.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// Which of these addresses to give to other hosts.
pub fn best(interfaces: &[Interface]) -> Option<IpAddr> {
    let outside: Vec<IpAddr> =
        interfaces.iter().filter(|interface| interface.leads_outside()).map(|interface| interface.address).collect();
    outside.iter().find(|address| address.is_ipv4()).or(outside.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_loopback_address() {
        let all = interfaces().unwrap();
        assert!(all.iter().any(|interface| interface.name == "lo" && interface.address.is_loopback()), "{all:?}");
    }

    #[test]
    fn the_address_for_peers_leads_outside() {
        let interface = |name: &str, address: &str, is_up| Interface {
            name: name.into(),
            address: address.parse().unwrap(),
            is_up,
            speed: None,
        };
        let mut all = vec![
            interface("lo", "127.0.0.1", true),
            interface("docker0", "172.17.0.1", true),
            interface("eth1", "10.0.0.9", false),
            interface("eth0", "fe80::1", true),
            interface("eth0", "fd00::2", true),
        ];
        assert_eq!(best(&all), Some("fd00::2".parse().unwrap()));
        all.push(interface("eth0", "192.0.2.2", true));
        assert_eq!(best(&all), Some("192.0.2.2".parse().unwrap()));
        assert_eq!(best(&all[..2]), None);
    }
}
