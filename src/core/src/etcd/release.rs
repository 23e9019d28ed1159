//! Releases of etcd with known defects that affect verdicts.

/// The first release of each line whose linearizable reads are linearizable if processes pause. In earlier releases a
/// leader that was paused and deposed can confirm a read (etcd issue 20418).
const FIRST_WITHOUT_STALE_READS: [[u32; 3]; 3] = [[3, 4, 42], [3, 5, 28], [3, 6, 9]];

/// Returns the release to which a member must be upgraded, because its release can confirm a linearizable read at a deposed
/// leader. Returns `None` for other releases and for versions that cannot be parsed.
#[must_use]
pub fn stale_read_fix(version: &str) -> Option<String> {
    let mut parts = version.split(['.', '-', '+']);
    let mut number = || parts.next()?.parse::<u32>().ok();
    let release = [number()?, number()?, number()?];
    let is_same_line_or_older = |fixed: &&[u32; 3]| release.iter().take(2).le(fixed.iter().take(2));
    let fixed = FIRST_WITHOUT_STALE_READS.iter().find(is_same_line_or_older)?;
    (release < *fixed).then(|| fixed.map(|number| number.to_string()).join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_first_corrected_release_of_the_line() {
        let affected = [
            ("3.3.27", "3.4.42"),
            ("3.4.41", "3.4.42"),
            ("3.5.16", "3.5.28"),
            ("3.6.0-rc.2", "3.6.9"),
            ("3.6.8", "3.6.9"),
        ];
        for (version, fixed) in affected {
            assert_eq!(stale_read_fix(version).as_deref(), Some(fixed), "{version}");
        }
        for version in
            ["3.4.42", "3.4.45", "3.5.28", "3.5.35", "3.6.9", "3.6.16", "3.7.0", "4.0.0", "", "unknown"]
        {
            assert_eq!(stale_read_fix(version), None, "{version}");
        }
    }
}
