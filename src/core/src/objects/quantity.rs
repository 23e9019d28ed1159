//! Quantities (`apimachinery/pkg/api/resource`): exact, and compared by value.

use std::fmt;

/// An amount in billionths, the finest unit of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

const NANO: i128 = 1_000_000_000;
const MILLI: i128 = NANO / 1000;

/// Maximum length of a text, in bytes. Kubernetes itself writes about twenty digits at most.
const MAX_LENGTH: usize = 64;

// === impl Quantity ===

impl Quantity {
    /// Parses `3920m`, `16Gi`, `1.5`, `1e3`. Amounts finer than a billionth are rounded up, as in Kubernetes.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_LENGTH {
            return None;
        }
        let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
        let (number, suffix) = text.split_at_checked(end)?;
        let scale = scale(suffix)?;
        let (negative, number) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number.strip_prefix('+').unwrap_or(number)),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.len() + part.len() == 0 || !digits(whole) || !digits(part) {
            return None;
        }
        let units: i128 = format!("{whole}{part}").parse().ok()?;
        let divisor = 10_i128.checked_pow(part.len().try_into().ok()?)?;
        let (factor, scale_divisor) = scale;
        let (amount, divisor) = (units.checked_mul(factor)?, divisor.checked_mul(scale_divisor)?);
        let magnitude = amount / divisor + i128::from(amount % divisor != 0);
        Some(Self(if negative { -magnitude } else { magnitude }))
    }

    /// Whole thousandths, rounded down: the unit of CPU.
    pub fn milli(self) -> i128 {
        self.0.div_euclid(MILLI)
    }

    /// Whole units, rounded down: the unit of memory.
    pub fn units(self) -> i128 {
        self.0.div_euclid(NANO)
    }

    /// Billionths, the finest unit.
    pub fn nano(self) -> i128 {
        self.0
    }

    /// A number of thousandths.
    pub fn from_milli(milli: i128) -> Self {
        Self(milli.saturating_mul(MILLI))
    }

    /// A number of units.
    pub fn from_units(units: i128) -> Self {
        Self(units.saturating_mul(NANO))
    }
}

/// The factor of a suffix, in billionths, and its divisor.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let binary = |power: u32| Some((1024_i128.checked_pow(power)?.checked_mul(NANO)?, 1));
    let decimal = |exponent: i32| {
        let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
        if exponent < 0 { Some((NANO, power)) } else { Some((NANO.checked_mul(power)?, 1)) }
    };
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => decimal(
            suffix.strip_prefix(['e', 'E'])?.parse().ok().filter(|exponent| (-18..=18).contains(exponent))?,
        ),
    }
}

impl fmt::Display for Quantity {
    /// Formats the quantity like Kubernetes, with the largest exact unit: `4`, `3920m`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (amount, suffix) = match self.0 {
            amount if amount % NANO == 0 => (amount / NANO, ""),
            amount if amount % MILLI == 0 => (amount / MILLI, "m"),
            amount if amount % 1000 == 0 => (amount / 1000, "u"),
            amount => (amount, "n"),
        };
        write!(f, "{amount}{suffix}")
    }
}

#[cfg(test)]
mod tests {
    use super::Quantity;

    #[test]
    fn compares_quantities_by_value() {
        let same = [
            ("4", "4000m"),
            ("1Gi", "1073741824"),
            ("1k", "1000"),
            ("1.5", "1500m"),
            ("1e3", "1E3"),
            ("0.5Gi", "512Mi"),
            ("-1", "-1000m"),
            ("2000000u", "2"),
        ];
        for (a, b) in same {
            assert_eq!(Quantity::parse(a), Quantity::parse(b), "{a} {b}");
            assert!(Quantity::parse(a).is_some());
        }
    }

    #[test]
    fn rejects_texts_that_are_no_quantity() {
        for text in ["", "m", "1x", "--1", "1.2.3", "1 ", "Gi", "1e", "1e99", &"9".repeat(65)] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }

    #[test]
    fn formats_with_the_largest_exact_unit() {
        for (text, written) in [("3920m", "3920m"), ("4000m", "4"), ("1n", "1n"), ("1Ki", "1024")] {
            assert_eq!(Quantity::parse(text).unwrap().to_string(), written);
        }
    }
}
