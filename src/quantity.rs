//! Quantities as people write them.

/// A quantity that cannot be read; the message says what is expected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {expected}")]
pub struct InvalidQuantity {
    text: String,
    expected: &'static str,
}

impl InvalidQuantity {
    pub(crate) fn new(text: &str, expected: &'static str) -> InvalidQuantity {
        InvalidQuantity { text: text.to_owned(), expected }
    }
}

/// Reads bytes per second, as in `819GB/s` or `10Gbit/s`.
///
/// # Errors
/// The text is something else, or not above 0.
pub fn parse_bandwidth(text: &str) -> Result<f64, InvalidQuantity> {
    let expected = "bytes per second, as in 819GB/s or 10Gbit/s";
    bytes_per_second(text).ok_or_else(|| InvalidQuantity::new(text, expected))
}

/// Reads operations per second, as in `100T`.
///
/// # Errors
/// The text is something else, or not above 0.
pub fn parse_flops(text: &str) -> Result<f64, InvalidQuantity> {
    let expected = "floating-point operations per second, as in 197T or 1.5P";
    let value = scaled(text.trim(), &[("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("", 1.0)]);
    value.ok_or_else(|| InvalidQuantity::new(text, expected))
}

/// Reads a time, as in `12.5ms`.
///
/// # Errors
/// The text is something else, or negative.
pub fn parse_seconds(text: &str) -> Result<f64, InvalidQuantity> {
    seconds(text).ok_or_else(|| InvalidQuantity::new(text, "a time, as in 12.5ms"))
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
    fn rates_of_work() {
        assert_eq!(parse_flops("1.5P"), Ok(1.5e15));
        insta::assert_snapshot!(parse_flops("fast").unwrap_err(), @"'fast' is not floating-point operations per second, as in 197T or 1.5P");
    }
}
