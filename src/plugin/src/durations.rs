//! Durations on the command line and in messages, as kubectl writes them: `5s`, `10m`, `1h30m`.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

/// Parses a duration that is longer than none.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).ok().filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| String::from("expected a duration such as 5s, 10m or 1h30m"))
}

/// Returns a duration as text.
pub(crate) fn text(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

/// Returns the time since a time (RFC 3339), or `None` if it is in the future or no time.
pub(crate) fn since(at: &str) -> Option<Duration> {
    let passed = Timestamp::now().duration_since(at.parse().ok()?);
    passed.try_into().ok()
}

/// Returns the time since a time (RFC 3339) in one unit, or the time itself if that is not known.
pub(crate) fn ago(at: &str) -> String {
    match since(at).map(|passed| passed.as_secs()) {
        None => at.to_owned(),
        Some(0..60) => String::from("less than a minute ago"),
        Some(seconds @ 60..3_600) => format!("{} min ago", seconds / 60),
        Some(seconds @ 3_600..172_800) => format!("{} h ago", seconds / 3_600),
        Some(seconds) => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    #[test]
    fn past_times_have_one_unit() {
        let ago = |seconds| ago(&(Timestamp::now() - SignedDuration::from_secs(seconds)).to_string());
        assert_eq!(
            [1, 61, 7_200, 3 * 86_400].map(ago),
            ["less than a minute ago", "1 min ago", "2 h ago", "3 days ago"]
        );
        assert_eq!((super::ago("yesterday"), ago(-60).ends_with('Z')), (String::from("yesterday"), true));
    }

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
