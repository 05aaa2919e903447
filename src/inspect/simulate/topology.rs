//! The cluster that a program is thought to run on.

use std::str::FromStr;

use serde::Serialize;

/// What a link carries, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Seconds until the first byte of a message arrives.
    pub latency_seconds: f64,
}

/// A cluster whose hosts are all alike. Devices are numbered by slice, host and process, as in a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// Slices: groups of hosts that share a fast interconnect.
    pub slices: u32,
    /// Hosts of each slice.
    pub hosts_per_slice: u32,
    /// Controller processes of each host.
    pub processes_per_host: u32,
    /// Devices of each process.
    pub devices_per_process: u32,
    /// Between processes of a slice, for each process.
    pub ici: Link,
    /// Between slices, for each host: its processes share it.
    pub dcn: Link,
}

impl Topology {
    /// Devices of all slices.
    pub fn device_count(&self) -> u64 {
        self.process_count() * u64::from(self.devices_per_process)
    }

    /// Processes of all slices.
    pub fn process_count(&self) -> u64 {
        u64::from(self.host_count()) * u64::from(self.processes_per_host)
    }

    pub(super) fn host_count(&self) -> u32 {
        self.slices.saturating_mul(self.hosts_per_slice)
    }

    pub(super) fn process_of(&self, device: u32) -> u32 {
        device / self.devices_per_process.max(1)
    }

    pub(super) fn host_of(&self, process: u32) -> u32 {
        process / self.processes_per_host.max(1)
    }

    pub(super) fn slice_of(&self, process: u32) -> u32 {
        self.host_of(process) / self.hosts_per_slice.max(1)
    }
}

/// A quantity that cannot be read; the message says what is expected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {expected}")]
pub struct InvalidQuantity {
    text: String,
    expected: &'static str,
}

impl FromStr for Link {
    type Err = InvalidQuantity;

    /// Bandwidth and latency, as in `100GB/s,1us` or `10Gbit/s,0.2ms`.
    fn from_str(text: &str) -> Result<Link, InvalidQuantity> {
        let wrong = || InvalidQuantity {
            text: text.to_owned(),
            expected: "a bandwidth and a latency, as in 100GB/s,1us or 10Gbit/s,0.2ms",
        };
        let (bandwidth, latency) = text.split_once(',').ok_or_else(wrong)?;
        let latency = seconds(latency).ok_or_else(wrong)?;
        Ok(Link { bytes_per_second: bytes_per_second(bandwidth).ok_or_else(wrong)?, latency_seconds: latency })
    }
}

/// Reads bytes per second, as in `819GB/s` or `10Gbit/s`.
///
/// # Errors
/// The text is something else, or not above 0.
pub fn parse_bandwidth(text: &str) -> Result<f64, InvalidQuantity> {
    let expected = "bytes per second, as in 819GB/s or 10Gbit/s";
    bytes_per_second(text).ok_or_else(|| InvalidQuantity { text: text.to_owned(), expected })
}

/// Reads operations per second, as in `100T`.
///
/// # Errors
/// The text is something else, or not above 0.
pub fn parse_flops(text: &str) -> Result<f64, InvalidQuantity> {
    let expected = "floating-point operations per second, as in 197T or 1.5P";
    let value = scaled(text.trim(), &[("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("", 1.0)]);
    value.ok_or_else(|| InvalidQuantity { text: text.to_owned(), expected })
}

/// Reads a time, as in `12.5ms`.
///
/// # Errors
/// The text is something else, or negative.
pub fn parse_seconds(text: &str) -> Result<f64, InvalidQuantity> {
    seconds(text).ok_or_else(|| InvalidQuantity { text: text.to_owned(), expected: "a time, as in 12.5ms" })
}

fn bytes_per_second(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 10] = [
        ("Tbit/s", 125e9),
        ("Gbit/s", 125e6),
        ("Mbit/s", 125e3),
        ("kbit/s", 125.0),
        ("TB/s", 1e12),
        ("GB/s", 1e9),
        ("MB/s", 1e6),
        ("kB/s", 1e3),
        ("KB/s", 1e3),
        ("B/s", 1.0),
    ];
    scaled(text.trim(), &UNITS)
}

fn seconds(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 5] = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let text = text.trim();
    if text == "0" { Some(0.0) } else { scaled(text, &UNITS) }
}

/// A positive number before the first of these units that the text ends with.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, scale) = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    let value = number.trim().parse::<f64>().ok()? * scale;
    (value.is_finite() && value > 0.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_rates() {
        let link = |text: &str| text.parse::<Link>();
        assert_eq!(link("100GB/s,1us"), Ok(Link { bytes_per_second: 1e11, latency_seconds: 1e-6 }));
        assert_eq!(link("1Gbit/s, 0.5ms"), Ok(Link { bytes_per_second: 1.25e8, latency_seconds: 5e-4 }));
        assert_eq!(link("6GB/s,0").unwrap().latency_seconds, 0.0);
        insta::assert_snapshot!(link("100,1us").unwrap_err(), @"'100,1us' is not a bandwidth and a latency, as in 100GB/s,1us or 10Gbit/s,0.2ms");
        assert!(link("-1GB/s,1us").is_err() && link("1GB/s").is_err() && link("nanGB/s,1us").is_err());
        assert_eq!(parse_flops("1.5P"), Ok(1.5e15));
        insta::assert_snapshot!(parse_flops("fast").unwrap_err(), @"'fast' is not floating-point operations per second, as in 197T or 1.5P");
    }
}
