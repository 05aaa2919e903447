//! Commands that start a helper on a host, through an agent such as ssh.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::rand::GetRandomFlags;

use super::super::controllers::tie_to_this_process;
use super::list::is_this_machine;

/// The agent unless the user names another. It asks nothing: there may be many hosts, and nobody to answer.
pub const SSH_COMMAND: &str = "ssh -x -o BatchMode=yes -o ConnectTimeout=10";

/// What the helper prints when it listens.
pub const HELPER_READY: &str = "spmd-run: ready";
const SEND_BINARY: &str = "spmd-run: send";
/// The most that a shell may print before, such as a greeting.
const MAX_GREETING: u64 = 1 << 20;

/// Runs in the POSIX shell of a host, with the binary's path, hash and size and a random name. If the host does not have this very binary
/// at this path, it asks for it. It makes a folder for the helper and takes it away in the end, whenever that comes.
///
/// It has neither single quotes nor exclamation marks nor line ends, so that every login shell hands it on as it is.
const SCRIPT: &str = r#"d=${TMPDIR:-/tmp}/spmd-run.$4; trap "rm -rf \"\$d\"" EXIT; trap exit HUP INT TERM; mkdir -m 700 "$d" || { d=; exit 1; }; p=$1; if "$p" __host --is "$2" </dev/null >/dev/null 2>&1; then :; else p=$d/spmd-run; echo "spmd-run: send"; head -c "$3" >"$p" && chmod 700 "$p" || exit 1; fi; "$p" __host "$d""#;

/// The binary that the helpers and the controllers are.
pub struct Binary {
    pub path: PathBuf,
    size: u64,
    /// BLAKE3, in hexadecimal digits.
    pub hash: String,
}

impl Binary {
    pub fn at(path: &Path) -> io::Result<Self> {
        let hash = blake3::Hash::from_bytes(super::files::hash(path)?).to_hex().to_string();
        Ok(Self { path: path.to_owned(), size: path.metadata()?.len(), hash })
    }

    /// Words that start a helper on the machine where they are run, with one more: a random name. `None` stands for the
    /// binary's path there.
    pub fn helper(&self) -> [Option<String>; 7] {
        let [sh, c, script, name] = ["sh", "-c", SCRIPT, "spmd-run"].map(|word| Some(word.to_owned()));
        [sh, c, script, name, None, Some(self.hash.clone()), Some(self.size.to_string())]
    }

    /// The command that starts a helper on this host.
    pub fn helper_on(&self, host: &str, agent: &str) -> io::Result<Command> {
        let mut name = [0; 8];
        rustix::rand::getrandom(&mut name, GetRandomFlags::empty())?;
        let name = format!("{:016x}", u64::from_ne_bytes(name));
        let mut command = if is_this_machine(host) {
            let mut words =
                self.helper().into_iter().map(|word| word.map_or_else(|| self.path.clone().into(), OsString::from));
            let mut shell = Command::new(words.next().unwrap_or_default());
            shell.args(words).arg(name);
            shell
        } else {
            let mut words = agent.split_whitespace();
            let mut agent = Command::new(words.next().unwrap_or_default());
            let (path, hash, size) = (quoted(&self.path.to_string_lossy()), &self.hash, self.size);
            agent.args(words).arg(host).arg(format!("exec sh -c '{SCRIPT}' spmd-run {path} {hash} {size} {name}"));
            // A shell on this machine takes its folder away when the launcher has gone; an agent has nothing to do then.
            tie_to_this_process(&mut agent, &[]);
            agent
        };
        // Ctrl-C is for the launcher, who hands it on.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        Ok(command)
    }

    /// Sends the binary if it is wanted, and waits until the helper listens.
    pub fn bring(&self, input: &mut impl Write, output: &mut impl Read) -> io::Result<()> {
        // One byte at a time, as what follows is not text.
        let mut lines = BufReader::with_capacity(1, output.take(MAX_GREETING));
        loop {
            let mut line = Vec::new();
            if lines.read_until(b'\n', &mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_ascii() {
                line if line == SEND_BINARY.as_bytes() => {
                    tracing::debug!("sending {} bytes of {}", self.size, self.path.display());
                    io::copy(&mut File::open(&self.path)?.take(self.size), input)?;
                    input.flush()?;
                }
                line if line == HELPER_READY.as_bytes() => return Ok(()),
                line => tracing::debug!("before the helper: {}", String::from_utf8_lossy(line)),
            }
        }
    }
}

/// One word for every shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What to do about an agent that could not start the helper, by what it said.
pub fn advice(host: &str, code: Option<i32>, words: &str) -> String {
    const KNOWN: [(&str, &str); 9] = [
        ("Permission denied (", "give this user's key to the host: ssh-copy-id HOST"),
        ("Host key verification failed", "if you trust the host, accept its key: ssh HOST"),
        ("Could not resolve hostname", "check the host's name"),
        ("Connection refused", "no ssh server listens there: check the port (--ssh \"ssh -p PORT\")"),
        ("timed out", "the host is down or cannot be reached from here"),
        ("No route to host", "the host is down or cannot be reached from here"),
        ("Network is unreachable", "the host cannot be reached from here"),
        ("Exec format error", "the host is of another kind than this one, build spmd-run for it"),
        ("No space left on device", "make room there, or set TMPDIR there to a folder with room"),
    ];
    let known = KNOWN.iter().find(|(mark, _)| words.contains(mark)).map(|(_, advice)| advice.replace("HOST", host));
    known.unwrap_or_else(|| match code {
        Some(126) => "set TMPDIR there to a folder from which programs may be run".to_owned(),
        Some(127) => "the host needs a POSIX shell with head, mkdir and chmod on the PATH".to_owned(),
        _ => format!("check that this works: ssh {host} true"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_hands_the_script_on() {
        assert!(!SCRIPT.contains(['\'', '\n']), "{SCRIPT}");
        assert!(SCRIPT.contains(SEND_BINARY));
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn greetings_are_skipped() {
        let binary = Binary { path: "/dev/null".into(), size: 0, hash: String::new() };
        let mut output = &b"Welcome!\nspmd-run: send\nspmd-run: ready\n\x01rest"[..];
        binary.bring(&mut Vec::new(), &mut output).unwrap();
        assert_eq!(output, b"\x01rest");
        assert!(binary.bring(&mut Vec::new(), &mut &b"Welcome!\n"[..]).is_err());
    }

    #[test]
    fn ssh_is_understood() {
        insta::assert_snapshot!(advice("b", Some(255), "me@b: Permission denied (publickey)."), @"give this user's key to the host: ssh-copy-id b");
        insta::assert_snapshot!(advice("b", Some(255), "something else"), @"check that this works: ssh b true");
        insta::assert_snapshot!(advice("b", Some(127), "head: not found"), @"the host needs a POSIX shell with head, mkdir and chmod on the PATH");
    }
}
