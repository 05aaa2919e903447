//! A real ssh server for hosts that are this machine.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server with keys of its own.
pub struct SshServer {
    child: Child,
    folder: TempDir,
    address: String,
    port: u16,
}

impl SshServer {
    /// Starts it at this address, by these words before its command. `None` where no server can be started.
    pub fn start(address: &str, before: &[&str]) -> Option<SshServer> {
        let Some(sshd) = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].into_iter().find(|path| Path::new(path).exists())
        else {
            eprintln!("skipped: no ssh server is installed (Debian: openssh-server)");
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        for key in ["host", "user", "stranger"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.path().join(key));
            if !keygen.status().is_ok_and(|status| status.success()) {
                eprintln!("skipped: ssh-keygen does not work here");
                return None;
            }
        }
        // Free here, and so most likely in another network namespace.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        drop(listener);
        let place = folder.path().display();
        let config = format!(
            "Port {port}\nListenAddress {address}\nHostKey {place}/host\nAuthorizedKeysFile {place}/user.pub\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nStrictModes no\nUsePAM no\nPidFile none\n"
        );
        std::fs::write(folder.path().join("sshd_config"), config).expect("a file");
        let host_key = std::fs::read_to_string(folder.path().join("host.pub")).expect("a key");
        std::fs::write(folder.path().join("known_hosts"), format!("[{address}]:{port} {host_key}")).expect("a file");
        // Where sshd goes after a connection is made; Debian makes it when the service starts.
        let _ = std::fs::create_dir_all("/run/sshd");
        let words: Vec<&str> = before.iter().copied().chain([sshd, "-D", "-e", "-f"]).collect();
        let mut server = Command::new(words[0]);
        server.args(&words[1..]).arg(folder.path().join("sshd_config"));
        let log = File::create(folder.path().join("log")).expect("a file");
        let child = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("sshd starts");
        let mut server = SshServer { child, folder, address: address.to_owned(), port };
        let start = Instant::now();
        let log = server.folder.path().join("log");
        while !std::fs::read_to_string(&log).unwrap_or_default().contains("Server listening") {
            if server.child.try_wait().expect("a child").is_some() || start.elapsed() > Duration::from_secs(20) {
                let log = std::fs::read_to_string(log).unwrap_or_default();
                eprintln!("skipped: the ssh server does not start: {log}");
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    /// What `--ssh` is, for a client with one of the keys. Its hosts are all this server.
    pub fn client(&self, key: &str, known_hosts: &str) -> String {
        let (place, address, port) = (self.folder.path().display(), &self.address, self.port);
        format!(
            "ssh -F none -p {port} -i {place}/{key} -o IdentitiesOnly=yes -o HostName={address} -o BatchMode=yes \
             -o UserKnownHostsFile={place}/{known_hosts} -o GlobalKnownHostsFile=none"
        )
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
