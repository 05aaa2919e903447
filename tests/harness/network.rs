//! Network namespaces of this machine as hosts, with a cable of limited speed between them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

const SLOW: [&str; 5] = ["tbf", "rate", "200mbit", "burst", "64kb"];

/// Two hosts, `10.77.0.1` and `10.77.0.2`.
pub struct Network {
    pub hosts: [String; 2],
}

impl Network {
    /// `None` where the system does not allow it. The name is for these two alone.
    pub fn new(name: &str) -> Option<Network> {
        let id = std::process::id();
        let network = Network { hosts: [1, 2].map(|host| format!("spmd-{id}-{name}-{host}")) };
        let [first, second] = &network.hosts;
        let cable = format!("type veth peer name eth0 netns {second}");
        let steps = [
            format!("ip netns add {first}"),
            format!("ip netns add {second}"),
            format!("ip -n {first} link add eth0 {cable}"),
        ];
        let made = steps.iter().all(|step| succeeds(step))
            && [1, 2].into_iter().zip(&network.hosts).all(|(number, host)| {
                let steps = [
                    format!("ip -n {host} address add 10.77.0.{number}/24 dev eth0"),
                    format!("ip -n {host} link set eth0 up"),
                    format!("ip -n {host} link set lo up"),
                    format!("ip netns exec {host} tc qdisc add dev eth0 root {} latency 400ms", SLOW.join(" ")),
                ];
                steps.iter().all(|step| succeeds(step))
            });
        if !made {
            eprintln!("skipped: no network namespaces with veth and tbf can be made here");
            return None;
        }
        Some(network)
    }

    /// The command that runs others on a host.
    pub fn on(&self, host: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.hosts[host]]
    }

    /// Where files lie that a host has in place of those in `/etc`.
    pub fn files(&self, host: usize) -> PathBuf {
        let folder = PathBuf::from("/etc/netns").join(&self.hosts[host]);
        fs::create_dir_all(&folder).expect("a folder for the namespace's files");
        folder
    }

    /// The same, but with the machine's own files in `/sys`, which daemons may need.
    pub fn with_sys(&self, host: usize) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net=/run/netns/{}", self.hosts[host])]
    }

    pub fn pull_cable(&self) {
        assert!(succeeds(&format!("ip -n {} link set eth0 down", self.hosts[1])));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            succeeds(&format!("ip netns delete {host}"));
            let _ = fs::remove_dir_all(PathBuf::from("/etc/netns").join(host));
        }
    }
}

/// Runs a command of words that are divided by spaces, and prints why it fails.
pub fn succeeds(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().expect("a command")).args(words).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim());
            false
        }
        Err(error) => {
            eprintln!("{command}: {error}");
            false
        }
    }
}
