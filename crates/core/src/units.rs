//! Byte counts as text.

use crate::{Error, Result};

const UNITS: [(&str, u64); 18] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    // Kubernetes quantities.
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("K", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

/// Whether `given` names the unit `name`. A single letter is case-sensitive: `m` is a thousandth in Kubernetes, and
/// `g` is 2^30 in other programs.
fn is_unit(name: &str, given: &str) -> bool {
    if name.len() == 1 && name != "B" { name == given } else { name.eq_ignore_ascii_case(given) }
}

/// Parses a byte count such as `200GiB`, `1.5 TB`, `32Gi` or `4096`.
///
/// ```
/// use dalsegno_core::{format_bytes, parse_bytes};
///
/// assert_eq!(parse_bytes("1.5 GiB")?, 3 << 29);
/// assert_eq!(parse_bytes("500MB")?, 500_000_000);
/// assert_eq!(format_bytes(3 << 29), "1.5 GiB");
/// assert!(parse_bytes("lots").is_err());
/// # Ok::<(), dalsegno_core::Error>(())
/// ```
///
/// # Errors
///
/// `Invalid` if there is no number, the unit is unknown or the count does not fit.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let wrong = || {
        Error::invalid(format!(
            "{text:?} is not a byte count; write a number and a unit, such as \"200GiB\" or \"500MB\""
        ))
    };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
    let (number, unit) = (trimmed[..split].trim(), trimmed[split..].trim());
    let unit = if unit.is_empty() { "B" } else { unit };
    let factor = UNITS
        .iter()
        .find(|(name, _)| is_unit(name, unit))
        .map(|(_, factor)| *factor)
        .ok_or_else(wrong)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(wrong);
    }
    let fraction: f64 = number.parse().map_err(|_| wrong())?;
    #[expect(clippy::cast_precision_loss, reason = "a unit is a small power of two or ten")]
    let bytes = fraction * factor as f64;
    // 2^53 bytes are 8 PiB. Above that, a fraction of a unit is no longer exact.
    if !(0.0..9e15).contains(&bytes) {
        return Err(wrong());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "range checked above"
    )]
    Ok(bytes as u64)
}

/// Formats a byte count with a binary unit and at most one decimal: `1.5 GiB`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let (name, factor) = UNITS[..5].iter().rev().find(|(_, f)| bytes >= *f).unwrap_or(&UNITS[0]);
    if bytes.is_multiple_of(*factor) {
        return format!("{} {name}", bytes / factor);
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let value = bytes as f64 / *factor as f64;
    format!("{value:.1} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_parse_with_common_units() {
        assert_eq!(parse_bytes("200GiB").unwrap(), 200 << 30);
        assert_eq!(parse_bytes(" 1.5 kib ").unwrap(), 1536);
        assert_eq!(parse_bytes("4096").unwrap(), 4096);
        assert_eq!(parse_bytes("2GB").unwrap(), 2_000_000_000);
        for (text, bytes) in
            [("32Gi", 32 << 30), ("500Mi", 500 << 20), ("1Ti", 1 << 40), ("64ki", 65536)]
        {
            assert_eq!(parse_bytes(text).unwrap(), bytes, "{text}");
        }
        for (text, bytes) in
            [("32G", 32_000_000_000), ("1.5T", 1_500_000_000_000), ("7k", 7_000), ("7 b", 7)]
        {
            assert_eq!(parse_bytes(text).unwrap(), bytes, "{text}");
        }
        for bad in [
            "",
            "500m",
            "32g",
            "1t",
            "Gi",
            "GiB",
            "-1",
            "1 parsec",
            "99999999999999999999",
            "1e30TiB",
            "nan",
        ] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn byte_counts_print_with_the_largest_fitting_unit() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(200 << 30), "200 GiB");
    }
}
