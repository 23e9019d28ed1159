//! Durations on the command line and in messages, as kubectl writes them: `5s`, `10m`, `1h30m`.

use std::time::Duration;

/// Parses a duration that is longer than none.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).ok().filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| String::from("expected a duration such as 5s, 10m or 1h30m"))
}

/// Returns a duration as text.
pub(crate) fn text(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_prints() {
        for duration in ["5s", "10m", "1h30m", "1m30s", "200ms"] {
            assert_eq!(text(parse(duration).unwrap()), duration);
        }
        for wrong in ["5", "0s", "", "-1s", "five"] {
            assert_eq!(parse(wrong).unwrap_err(), "expected a duration such as 5s, 10m or 1h30m", "{wrong}");
        }
    }
}
