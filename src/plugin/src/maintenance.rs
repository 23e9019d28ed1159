//! Maintenance of guarded clusters by commands: moves of leadership, rolling restarts, replacements, defragmentation, backups and
//! restorations.
//!
//! Plans are pure functions of the data that was read ([`health`], [`restart::plan`], [`replace::plan`]); the other files read, write and
//! wait. All calls use the permissions of the user, and the API server sends every eviction and deletion to the guard.

pub(crate) mod backup;
pub(crate) mod eviction;
pub(crate) mod health;
pub(crate) mod leadership;
pub(crate) mod replace;
pub(crate) mod reporter;
pub(crate) mod requests;
pub(crate) mod restart;
pub(crate) mod restore;
pub(crate) mod upgrade;

use k8s_openapi::jiff::Timestamp;

/// Returns the current time in RFC 3339, in UTC and with milliseconds: two requests in one second differ.
pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_time_has_milliseconds() {
        let text = now();
        let time: Timestamp = text.parse().unwrap();
        assert_eq!(text.len(), "2026-11-24T06:00:00.000Z".len(), "{text}");
        assert!(Timestamp::now().duration_since(time).as_secs() < 60, "{text}");
    }
}
