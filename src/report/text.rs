//! Numbers and text in pages.

/// Text that is no HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number with three digits that count.
fn three_digits(number: f64) -> String {
    match number {
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// A time in nanoseconds, as in `12.3 µs`.
pub fn duration(nanoseconds: u64) -> String {
    let time = nanoseconds as f64;
    match nanoseconds {
        0 => "0".to_owned(),
        ..1000 => format!("{nanoseconds} ns"),
        ..999_500 => format!("{} µs", three_digits(time / 1e3)),
        ..999_500_000 => format!("{} ms", three_digits(time / 1e6)),
        _ => format!("{} s", three_digits(time / 1e9)),
    }
}

/// A size, as in `1.50 MiB`.
pub fn size(bytes: u64) -> String {
    let number = bytes as f64;
    match bytes {
        ..1024 => format!("{bytes} B"),
        ..1_048_576 => format!("{} KiB", three_digits(number / 1024.0)),
        ..1_073_741_824 => format!("{} MiB", three_digits(number / 1_048_576.0)),
        _ => format!("{} GiB", three_digits(number / 1_073_741_824.0)),
    }
}

/// Bytes per second, as in `1.23 GB/s`.
pub fn bandwidth(bytes_per_second: f64) -> String {
    match bytes_per_second {
        ..999_500.0 => format!("{} kB/s", three_digits(bytes_per_second / 1e3)),
        ..999_500_000.0 => format!("{} MB/s", three_digits(bytes_per_second / 1e6)),
        _ => format!("{} GB/s", three_digits(bytes_per_second / 1e9)),
    }
}

/// A point in time in nanoseconds, with the digits that tell it from others of a long job: `9.46123 s`.
pub fn moment(nanoseconds: u64) -> String {
    format!("{:.6} s", nanoseconds as f64 / 1e9)
}

/// A part of a whole, in percent.
pub fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let times = [0, 999, 1000, 12_345, 999_499, 1_500_000, 61_000_000_000];
        assert_eq!(times.map(duration), ["0", "999 ns", "1.00 µs", "12.3 µs", "999 µs", "1.50 ms", "61.0 s"]);
        assert_eq!([12, 1536, 3 << 20].map(size), ["12 B", "1.50 KiB", "3.00 MiB"]);
        assert_eq!([12e3, 34e6].map(bandwidth), ["12.0 kB/s", "34.0 MB/s"]);
        assert_eq!((bandwidth(1.5e9), percent(1, 4), percent(0, 0)), ("1.50 GB/s".to_owned(), 25.0, 0.0));
        assert_eq!(escaped("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
