//! Text for people.

use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::Context;
use spmd_run::collective::Link;
use spmd_run::runtime::{Device, JobLinks};
use spmd_run::whole_file;

use super::Failure;

/// Lays rows out in columns, two spaces apart; columns whose name starts with `#` hold numbers and are aligned right.
pub fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = columns.iter().map(|name| name.trim_start_matches('#').to_owned()).collect();
    let width = |column: usize| {
        let cells = std::iter::once(&header).chain(rows).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in std::iter::once(&header).chain(rows) {
        let cells = row.iter().zip(columns).zip(&widths).map(|((cell, name), &width)| {
            if name.starts_with('#') { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Writes text to standard output. Whoever reads it may have read enough.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// As [`print`], for bytes that are no text.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::program(anyhow::Error::new(error).context("cannot write to standard output")))
        }
        _ => Ok(()),
    }
}

/// Checks that a file can be written, before any work is done for it.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    let writable = whole_file::check(path);
    writable.with_context(|| format!("cannot write {}", path.display())).map_err(Failure::program)
}

/// Seconds, as people read them.
pub fn time(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.1} µs", seconds * 1e6),
        ..1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// What the links of a job carry.
pub fn links_text(links: &JobLinks) -> String {
    let link = |link: &Link| format!("{:.3} GB/s, {}", link.bytes_per_second / 1e9, time(link.latency_seconds));
    let known = if links.is_measured { "measured" } else { "given" };
    format!("ICI {} per process; DCN {} per host ({known})", link(&links.links.ici), link(&links.links.dcn))
}

/// Dense ids as `0-3`.
pub fn id_range(devices: &[Device]) -> String {
    match devices {
        [] => String::new(),
        [only] => only.id.to_string(),
        [first, .., last] => format!("{}-{}", first.id, last.id),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["0".into(), "host-a".into(), "2".into()], vec!["10".into(), "b".into(), "16".into()]];
        insta::assert_snapshot!(super::table(&["#process", "host", "#devices"], &rows), @r"
        process  host    devices
              0  host-a        2
             10  b            16
        ");
    }
}
