//! What users read when a wait ran out or the job was stopped.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Something that processes wait for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// All processes to join.
    Join,
    /// A barrier, by its name.
    Barrier(String),
    /// An all-gather, by its name.
    AllGather(String),
    /// All processes to finish.
    Shutdown,
    /// Some process to put a key's value.
    Key(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Join => f.write_str("the start of the job"),
            Self::Barrier(name) => write!(f, "barrier '{name}'"),
            Self::AllGather(name) => write!(f, "all_gather '{name}'"),
            Self::Shutdown => f.write_str("the end of the job"),
            Self::Key(key) => write!(f, "key '{key}'"),
        }
    }
}

/// The processes that did not come to a place in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Where they were waited for.
    pub place: Place,
    /// How long the process that gave up had waited.
    pub waited: Duration,
    /// How many processes the job has.
    pub process_count: u32,
    /// Who has not come, in order.
    pub processes: Vec<MissingProcess>,
}

/// A process that did not come to a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingProcess {
    /// Its index.
    pub process_index: u32,
    /// Its host, where that is known.
    pub host: Option<String>,
    /// Where it waits instead.
    pub waits_at: Option<Place>,
    /// What it last said it was doing.
    pub last_seen: Option<String>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "waited {} at {}: missing {} of {}: {}",
            Seconds(self.waited),
            self.place,
            self.processes.len(),
            self.process_count,
            ProcessList(&named(&self.processes))
        )?;
        for process in self.processes.iter().take(LISTED) {
            match (&process.waits_at, &process.last_seen) {
                (Some(place), _) => write!(f, "; process {} waits at {place}", process.process_index)?,
                (None, Some(seen)) => write!(f, "; process {} was {seen}", process.process_index)?,
                (None, None) => {}
            }
        }
        Ok(())
    }
}

/// Why the job was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// The process that failed first, when it is one.
    pub process_index: Option<u32>,
    /// Whether that process told the reason itself; else the others found it gone.
    pub reported: bool,
    /// What happened; it names the process.
    pub message: String,
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The most processes a message lists one by one.
const LISTED: usize = 16;

/// `process 2, 3 (host-b), 5 (host-c)`, cut short when there are many: each process's index and its host, which is empty
/// where it is not known.
#[derive(Debug, Clone, Copy)]
pub struct ProcessList<'a>(pub &'a [(u32, &'a str)]);

impl fmt::Display for ProcessList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("process ")?;
        let listed = &self.0[..self.0.len().min(LISTED)];
        for (group_index, group) in listed.chunk_by(|(_, a), (_, b)| a == b).enumerate() {
            for (index, (process, _)) in group.iter().enumerate() {
                let separator = if group_index + index == 0 { "" } else { ", " };
                write!(f, "{separator}{process}")?;
            }
            if let Some((_, host)) = group.first().filter(|(_, host)| !host.is_empty()) {
                write!(f, " ({host})")?;
            }
        }
        match self.0.len() - listed.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// What a [`ProcessList`] shows of these.
pub(super) fn named(processes: &[MissingProcess]) -> Vec<(u32, &str)> {
    processes.iter().map(|it| (it.process_index, it.host.as_deref().unwrap_or_default())).collect()
}

/// A time as people write it: `30 s`, `1.5 s`, `250 ms`.
pub(super) struct Seconds(pub Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            millis @ 0..1000 => write!(f, "{millis} ms"),
            millis if millis % 1000 < 50 || millis > 10_000 => write!(f, "{} s", self.0.as_secs_f64().round()),
            _ => write!(f, "{:.1} s", self.0.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(process_index: u32, host: Option<&str>, waits_at: Option<Place>) -> MissingProcess {
        MissingProcess { process_index, host: host.map(str::to_owned), waits_at, last_seen: None }
    }

    #[test]
    fn missing_processes_are_named_by_host() {
        let mut missing = Missing {
            place: Place::Barrier("compiled".into()),
            waited: Duration::from_secs(30),
            process_count: 4,
            processes: vec![process(2, Some("host-b"), None), process(3, Some("host-b"), None)],
        };
        insta::assert_snapshot!(missing, @"waited 30 s at barrier 'compiled': missing 2 of 4: process 2, 3 (host-b)");
        missing.processes.push(process(1, Some("host-c"), Some(Place::Barrier("loaded".into()))));
        insta::assert_snapshot!(missing, @"waited 30 s at barrier 'compiled': missing 3 of 4: process 2, 3 (host-b), 1 (host-c); process 1 waits at barrier 'loaded'");
        missing.place = Place::Join;
        missing.process_count = 2000;
        missing.processes = (1..2000).map(|index| process(index, None, None)).collect();
        insta::assert_snapshot!(missing, @"waited 30 s at the start of the job: missing 1999 of 2000: process 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 1983 more");
    }

    #[test]
    fn times_are_short() {
        let texts: Vec<_> =
            [0, 250, 1000, 1500, 2001, 30_400].map(|ms| Seconds(Duration::from_millis(ms)).to_string()).into();
        assert_eq!(texts, ["0 ms", "250 ms", "1 s", "1.5 s", "2 s", "30 s"]);
    }
}
