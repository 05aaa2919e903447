//! Network namespaces that stand for hosts, with cables between them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The cable of [`Namespaces::pair`].
pub const CABLE: &str = "eth0";

/// Hosts, which are gone when this is dropped.
pub struct Namespaces(Vec<String>);

impl Namespaces {
    /// So many, each with its loopback interface; `None` where the system does not allow it.
    pub fn new(name: &str, count: usize) -> Option<Namespaces> {
        let names = (0..count).map(|index| format!("spmd-{}-{name}-{index}", std::process::id()));
        let namespaces = Namespaces(names.collect());
        let made = namespaces.0.iter().all(|name| {
            succeeds(&["ip", "netns", "add", name]) && succeeds(&["ip", "-n", name, "link", "set", "lo", "up"])
        });
        made_or_skipped(made.then_some(namespaces))
    }

    /// Two, 10.78.0.1 and 10.78.0.2, with a cable of so many Mbit/s between them.
    pub fn pair(name: &str, rate: u32) -> Option<Namespaces> {
        let namespaces = Namespaces::new(name, 2)?;
        let made = namespaces.lay_cable(CABLE, 0) && namespaces.limit(CABLE, rate);
        made_or_skipped(made.then_some(namespaces))
    }

    /// A cable of this name between the first two, with addresses 10.78.`net`.1 and .2.
    pub fn lay_cable(&self, name: &str, net: usize) -> bool {
        let [a, b] = [&*self.0[0], &*self.0[1]];
        let cable = ["ip", "-n", a, "link", "add", name, "type", "veth", "peer", "name", name, "netns", b];
        succeeds(&cable)
            && [a, b].iter().zip(1..).all(|(host, number)| {
                succeeds(&["ip", "-n", host, "addr", "add", &format!("10.78.{net}.{number}/24"), "dev", name])
                    && succeeds(&["ip", "-n", host, "link", "set", name, "up"])
            })
    }

    /// Lets an interface of all hosts send so many Mbit/s.
    pub fn limit(&self, interface: &str, rate: u32) -> bool {
        // At 1 Gbit/s it must let through the largest packets of a loopback interface.
        let (rate, burst) = (format!("{rate}mbit"), format!("{}kb", (rate / 4).max(64)));
        let limit = ["dev", interface, "root", "tbf", "rate", &rate, "burst", &burst, "latency", "400ms"];
        (0..self.0.len()).all(|host| succeeds(&[&self.on(host)[..], &["tc", "qdisc", "replace"], &limit].concat()))
    }

    /// Pulls the second host's end of a cable ("down"), or puts it in again ("up").
    pub fn set_cable(&self, name: &str, state: &str) {
        assert!(succeeds(&["ip", "-n", &self.0[1], "link", "set", name, state]));
    }

    /// The words before a command that make it run on a host.
    pub fn on(&self, host: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.0[host]]
    }

    /// The same, but with the machine's own files in `/sys`, which daemons may need.
    pub fn with_sys(&self, host: usize) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net=/run/netns/{}", self.0[host])]
    }

    /// What a command prints on a host.
    pub fn output(&self, host: usize, words: &[&str]) -> String {
        let [ip, before @ ..] = self.on(host);
        let output = Command::new(ip).args(before).args(words).output().expect("ip starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Bytes that a host has sent ("tx") or received ("rx") by an interface.
    pub fn bytes(&self, host: usize, interface: &str, way: &str) -> u64 {
        let file = format!("/sys/class/net/{interface}/statistics/{way}_bytes");
        self.output(host, &["cat", &file]).trim().parse().expect("a number of bytes")
    }

    /// Where files lie that a host has in place of those in `/etc`.
    pub fn files(&self, host: usize) -> PathBuf {
        let folder = PathBuf::from("/etc/netns").join(&self.0[host]);
        fs::create_dir_all(&folder).expect("a folder for the namespace's files");
        folder
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            succeeds(&["ip", "netns", "del", name]);
            let _ = fs::remove_dir_all(PathBuf::from("/etc/netns").join(name));
        }
    }
}

fn made_or_skipped(made: Option<Namespaces>) -> Option<Namespaces> {
    if made.is_none() {
        eprintln!("skipped: no network namespaces with veth and tbf can be made here");
    }
    made
}

/// Runs a command, and shows why it fails if it does.
fn succeeds(words: &[&str]) -> bool {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let error = match output {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("{}: {error}", words.join(" "));
    false
}
