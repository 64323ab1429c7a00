//! Sizes and times for people: in the unit that leaves at least one digit before the point.

/// A number of bytes: `512 B`, `46.9 KiB`, `3.0 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let step = (0..UNITS.len()).rev().find(|step| bytes >> (10 * step) > 0).unwrap_or(0);
    match step {
        0 => format!("{bytes} B"),
        _ => format!("{:.1} {}", bytes as f64 / (1u64 << (10 * step)) as f64, UNITS[step]),
    }
}

/// A time in nanoseconds: `850 ns`, `12.3 µs`, `4.6 ms`. Long times stay in milliseconds, so that
/// steps are easy to compare.
pub fn time(nanoseconds: u64) -> String {
    let number = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        // From here on, rounding would give 1000.0 µs.
        1_000..999_950 => format!("{:.1} µs", number / 1e3),
        _ => format!("{:.1} ms", number / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::{size, time};

    #[test]
    fn small_ones_are_not_zero() {
        let sizes = [0, 1023, 1024, 48_040, 3 << 20, u64::MAX].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "46.9 KiB", "3.0 MiB", "16.0 EiB"]);
        let times = [0, 850, 1_000, 12_345, 999_949, 999_950, 4_600_000, 12_345_678_901].map(time);
        let expected =
            ["0 ns", "850 ns", "1.0 µs", "12.3 µs", "999.9 µs", "1.0 ms", "4.6 ms", "12345.7 ms"];
        assert_eq!(times, expected);
    }
}
