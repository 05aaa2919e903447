//! The hosts of a job, in the syntax of mpirun.

use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::path::Path;

/// A host and the number of its controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its name, as ssh knows it.
    pub host: String,
    /// How many controllers it gets.
    pub processes: u32,
}

/// A host as the user lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Its name, as ssh knows it.
    pub host: String,
    /// How many controllers it has room for, if that is said.
    pub slots: Option<u32>,
}

/// What is wrong with a list of hosts.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostListError {
    /// An entry that cannot be read.
    #[error("{place}: {reason}")]
    Entry {
        /// `FILE:LINE` or the option.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// More processes than there is room for.
    #[error("-n {asked}: the hosts have {slots} slots ({hosts}): give them more, or ask for at most -n {slots}")]
    TooMany {
        /// How many were asked for.
        asked: u32,
        /// How many there are.
        slots: u32,
        /// The hosts with their slots.
        hosts: String,
    },
    /// Fewer processes than hosts.
    #[error("-n {asked}: no process is left for {host}: leave this host out, or ask for more")]
    TooFew {
        /// How many were asked for.
        asked: u32,
        /// The first host that would have none.
        host: String,
    },
    /// A number that the hosts without slots cannot share evenly.
    #[error("-n {asked}: {hosts} hosts cannot share {left} processes evenly: say how many each takes, as in {host}:2")]
    Uneven {
        /// How many were asked for.
        asked: u32,
        /// How many are left for the hosts without slots.
        left: u32,
        /// How many these hosts are.
        hosts: u32,
        /// One of them.
        host: String,
    },
}

/// Reads `a,b:2,[fd00::1]:4`.
pub fn parse(text: &str) -> Result<Vec<Slots>, HostListError> {
    let wrong = |reason| HostListError::Entry { place: format!("--hosts {text}"), reason };
    text.split(',').map(|entry| entry_with_count(entry.trim()).map_err(wrong)).collect::<Result<_, _>>().map(merged)
}

/// Reads a file with a host a line, as in `node-a slots=4 max_slots=8  # comment`.
pub fn parse_file(path: &Path, text: &str) -> Result<Vec<Slots>, HostListError> {
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let wrong = |reason| HostListError::Entry { place: format!("{}:{}", path.display(), number + 1), reason };
        let mut words = line.split_whitespace();
        if let Some(host) = words.next() {
            let slots = entry_with_count(host).map_err(wrong)?;
            all.push(with_words(slots, words).map_err(wrong)?);
        }
    }
    if all.is_empty() {
        return Err(HostListError::Entry { place: path.display().to_string(), reason: "it lists no host".to_owned() });
    }
    Ok(merged(all))
}

/// How many controllers each host gets. One without slots takes one, or its even share of what the others leave of
/// `processes`; hosts with slots are filled in order.
pub fn share(hosts: &[Slots], processes: Option<u32>) -> Result<Vec<Share>, HostListError> {
    let stated: u32 = hosts.iter().filter_map(|host| host.slots).fold(0, u32::saturating_add);
    let unstated: Vec<&Slots> = hosts.iter().filter(|host| host.slots.is_none()).collect();
    let each = match (processes, unstated.first()) {
        (Some(asked), Some(first)) => {
            let (left, among) = (asked.saturating_sub(stated), unstated.len() as u32);
            if left < among {
                return Err(HostListError::TooFew { asked, host: unstated[left as usize].host.clone() });
            }
            if left % among != 0 {
                return Err(HostListError::Uneven { asked, left, hosts: among, host: first.host.clone() });
            }
            left / among
        }
        _ => 1,
    };
    let room = |host: &Slots| host.slots.unwrap_or(each);
    let total = hosts.iter().map(room).fold(0, u32::saturating_add);
    let asked = processes.unwrap_or(total);
    if asked > total {
        let hosts: Vec<String> = hosts.iter().map(|host| format!("{}:{}", host.host, room(host))).collect();
        return Err(HostListError::TooMany { asked, slots: total, hosts: hosts.join(", ") });
    }
    let mut left = asked;
    let mut shares = Vec::new();
    for host in hosts {
        let processes = room(host).min(left);
        if processes == 0 {
            return Err(HostListError::TooFew { asked, host: host.host.clone() });
        }
        left -= processes;
        shares.push(Share { host: host.host.clone(), processes });
    }
    Ok(shares)
}

/// Whether a host is this machine, as far as its name tells.
pub fn is_this_machine(host: &str) -> bool {
    let own = rustix::system::uname();
    let own = own.nodename().to_string_lossy();
    let is_own_name = host == own || Some(host) == own.split('.').next();
    // Only an address of this machine can be listened at.
    let is_own_address = || host.parse::<IpAddr>().is_ok_and(|address| TcpListener::bind((address, 0)).is_ok());
    host == "localhost" || is_own_name || is_own_address()
}

/// `host`, `host:4`, `[fd00::1]:4` or `fd00::1`
fn entry_with_count(entry: &str) -> Result<Slots, String> {
    if entry.parse::<Ipv6Addr>().is_ok() {
        return Ok(Slots { host: entry.to_owned(), slots: None });
    }
    let (host, count) = match entry.strip_prefix('[').and_then(|entry| entry.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or_else(|| format!("'{entry}' is no host"))?)),
        None => match entry.split_once(':') {
            Some((host, count)) => (host, Some(count)),
            None => (entry, None),
        },
    };
    // What starts with a dash would be an option of ssh.
    if host.is_empty() || host.starts_with('-') || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("'{entry}' is no host"));
    }
    Ok(Slots { host: host.to_owned(), slots: count.map(|count| number(entry, count)).transpose()? })
}

fn with_words<'a>(mut slots: Slots, words: impl Iterator<Item = &'a str>) -> Result<Slots, String> {
    let mut most = None;
    for word in words {
        match word.split_once('=') {
            Some(("slots", count)) if slots.slots.is_none() => slots.slots = Some(number(word, count)?),
            Some(("slots", _)) => return Err(format!("'{word}': the number of slots is given twice")),
            Some(("max_slots" | "max-slots", count)) => most = Some((word, number(word, count)?)),
            _ => return Err(format!("'{word}' is not known: a line is HOST [slots=N] [max_slots=N]")),
        }
    }
    match (most, slots.slots) {
        (Some((word, most)), Some(slots)) if slots > most => Err(format!("'{word}' is below slots={slots}")),
        _ => Ok(slots),
    }
}

fn number(word: &str, count: &str) -> Result<u32, String> {
    const MOST: u32 = 65536;
    match count.parse() {
        Ok(count @ 1..=MOST) => Ok(count),
        _ => Err(format!("'{word}': the number of slots is 1 to {MOST}")),
    }
}

/// A host that is listed several times has the slots of all its entries.
fn merged(all: Vec<Slots>) -> Vec<Slots> {
    let mut merged: Vec<Slots> = Vec::new();
    for Slots { host, slots } in all {
        match merged.iter_mut().find(|other| other.host == host) {
            Some(other) => other.slots = Some(other.slots.unwrap_or(1).saturating_add(slots.unwrap_or(1))),
            None => merged.push(Slots { host, slots }),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(hosts: &str, processes: Option<u32>) -> String {
        match parse(hosts).and_then(|hosts| share(&hosts, processes)) {
            Ok(shares) => {
                let shares: Vec<_> = shares.iter().map(|share| format!("{}:{}", share.host, share.processes)).collect();
                shares.join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn hosts_share_the_processes() {
        assert_eq!(shares("a,b", None), "a:1 b:1");
        assert_eq!(shares("a,b:2", None), "a:1 b:2");
        assert_eq!(shares("a,b", Some(4)), "a:2 b:2");
        assert_eq!(shares("a:4,b:4", Some(6)), "a:4 b:2");
        assert_eq!(shares("a:3,b,c", Some(7)), "a:3 b:2 c:2");
        assert_eq!(shares("a,b,a", None), "a:2 b:1");
        assert_eq!(shares("fd00::1,[fd00::2]:3,[::1],me@c", None), "fd00::1:1 fd00::2:3 ::1:1 me@c:1");
    }

    #[test]
    fn what_does_not_fit_is_explained() {
        insta::assert_snapshot!(shares("a:2,b:2", Some(6)), @"-n 6: the hosts have 4 slots (a:2, b:2): give them more, or ask for at most -n 4");
        insta::assert_snapshot!(shares("a:2,b:2", Some(2)), @"-n 2: no process is left for b: leave this host out, or ask for more");
        insta::assert_snapshot!(shares("a,b,c", Some(2)), @"-n 2: no process is left for c: leave this host out, or ask for more");
        insta::assert_snapshot!(shares("a,b", Some(5)), @"-n 5: 2 hosts cannot share 5 processes evenly: say how many each takes, as in a:2");
        insta::assert_snapshot!(shares("a,,b", None), @"--hosts a,,b: '' is no host");
        insta::assert_snapshot!(shares("a,-oProxyCommand=x", None), @"--hosts a,-oProxyCommand=x: '-oProxyCommand=x' is no host");
        insta::assert_snapshot!(shares("a:0", None), @"--hosts a:0: 'a:0': the number of slots is 1 to 65536");
        insta::assert_snapshot!(shares("[::1]2", None), @"--hosts [::1]2: '[::1]2' is no host");
    }

    #[test]
    fn host_files() {
        let read = |text| parse_file(Path::new("hosts"), text);
        let slots = |host: &str, slots| Slots { host: host.to_owned(), slots };
        let all = read("# ours\n\nnode-a slots=4 max_slots=8 # big\n  node-b\nnode-c:2\nnode-b slots=1 max-slots=2\n")
            .unwrap();
        assert_eq!(all, [slots("node-a", Some(4)), slots("node-b", Some(2)), slots("node-c", Some(2))]);
        insta::assert_snapshot!(read("a\nb slot=2\n").unwrap_err(), @"hosts:2: 'slot=2' is not known: a line is HOST [slots=N] [max_slots=N]");
        insta::assert_snapshot!(read("a slots=4 max_slots=2").unwrap_err(), @"hosts:1: 'max_slots=2' is below slots=4");
        insta::assert_snapshot!(read("a:2 slots=4").unwrap_err(), @"hosts:1: 'slots=4': the number of slots is given twice");
        insta::assert_snapshot!(read("a slots=many").unwrap_err(), @"hosts:1: 'slots=many': the number of slots is 1 to 65536");
        insta::assert_snapshot!(read("# nothing\n").unwrap_err(), @"hosts: it lists no host");
    }

    #[test]
    fn this_machine_is_known() {
        let own = rustix::system::uname();
        for host in ["localhost", "127.0.0.1", &own.nodename().to_string_lossy()] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["me@localhost", "192.0.2.77", "other-host"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
