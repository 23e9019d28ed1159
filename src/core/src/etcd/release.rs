//! Releases of etcd with known defects that affect verdicts.

/// The first release of each line whose linearizable reads are linearizable if processes pause. In earlier releases a
/// leader that was paused and deposed can confirm a read (etcd issue 20418).
const FIRST_WITHOUT_STALE_READS: [[u32; 3]; 3] = [[3, 4, 42], [3, 5, 28], [3, 6, 9]];

/// The first release of each line whose member list agrees with raft. In earlier releases an update of a learner lists it as a
/// voter (etcd issue 21694), and the promotion of a learner can be lost from the list (19557 and 20793). Releases before 3.4 have
/// no learners.
const FIRST_WITH_TRUE_LISTS: [[u32; 3]; 2] = [[3, 5, 31], [3, 6, 12]];

/// The first release whose list can lose the promotion of a learner.
const FIRST_WITH_LOST_PROMOTIONS: [u32; 3] = [3, 5, 1];

/// The first release of each line that adds a learner while a voter is down.
const FIRST_WITH_FREE_ADDITIONS: [[u32; 3]; 2] = [[3, 5, 30], [3, 6, 11]];

/// The releases in which a crash during a defragmentation makes the data inconsistent (etcd issue 14685).
const UNSAFE_DEFRAGMENTATION: std::ops::Range<[u32; 3]> = [3, 5, 0]..[3, 5, 6];

/// The first release with learners.
const FIRST_WITH_LEARNERS: [u32; 3] = [3, 4, 0];

/// Returns the release to which a member must be upgraded, because its release can confirm a linearizable read at a deposed
/// leader. Returns `None` for other releases and for versions that cannot be parsed.
pub fn stale_read_fix(version: &str) -> Option<String> {
    fix(version, &FIRST_WITHOUT_STALE_READS)
}

/// Returns the release to which a member must be upgraded, because its release can list a learner as a voter, or a voter as a
/// learner. Returns `None` for other releases and for versions that cannot be parsed.
pub fn wrong_list_fix(version: &str) -> Option<String> {
    let has_learners = number(version)? >= FIRST_WITH_LEARNERS;
    fix(version, &FIRST_WITH_TRUE_LISTS).filter(|_| has_learners)
}

/// Returns the release to which a member must be upgraded, because its release can list a voter as a learner: the line 3.4 does
/// not lose promotions.
pub fn lost_promotion_fix(version: &str) -> Option<String> {
    let loses_promotions = number(version)? >= FIRST_WITH_LOST_PROMOTIONS;
    wrong_list_fix(version).filter(|_| loses_promotions)
}

/// Returns the release to which a leader must be upgraded, because its release adds no member, not even a learner, while a voter is down.
/// Returns `None` for other releases and for versions that cannot be parsed.
pub fn addition_fix(version: &str) -> Option<String> {
    fix(version, &FIRST_WITH_FREE_ADDITIONS)
}

/// Whether a crash during a defragmentation can make the data of this release inconsistent.
pub fn is_unsafe_to_defragment(version: &str) -> bool {
    number(version).is_some_and(|release| UNSAFE_DEFRAGMENTATION.contains(&release))
}

/// Returns the first corrected release of the line of this version, or of the next line that has one.
fn fix(version: &str, corrected: &[[u32; 3]]) -> Option<String> {
    let release = number(version)?;
    let is_same_line_or_older = |fixed: &&[u32; 3]| release.iter().take(2).le(fixed.iter().take(2));
    let fixed = corrected.iter().find(is_same_line_or_older)?;
    (release < *fixed).then(|| fixed.map(|number| number.to_string()).join("."))
}

fn number(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split(['.', '-', '+']);
    let mut number = || parts.next()?.parse::<u32>().ok();
    Some([number()?, number()?, number()?])
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

    #[test]
    fn names_the_first_release_with_a_true_list() {
        let affected = [
            ("3.4.21", "3.5.31"),
            ("3.5.0", "3.5.31"),
            ("3.5.30", "3.5.31"),
            ("3.6.0-rc.2", "3.6.12"),
            ("3.6.11", "3.6.12"),
        ];
        for (version, fixed) in affected {
            assert_eq!(wrong_list_fix(version).as_deref(), Some(fixed), "{version}");
        }
        for version in ["3.3.27", "3.5.31", "3.6.12", "3.7.0", "4.0.0", "", "unknown"] {
            assert_eq!(wrong_list_fix(version), None, "{version}");
        }
        let lost = ["3.4.21", "3.5.0", "3.5.1", "3.6.11", "3.6.12"].map(lost_promotion_fix);
        assert_eq!(lost.each_ref().map(Option::as_deref), [None, None, Some("3.5.31"), Some("3.6.12"), None]);
    }

    #[test]
    fn names_the_first_release_that_adds_members_freely() {
        let fixes = ["3.4.45", "3.5.29", "3.5.30", "3.6.10", "3.6.11", "3.7.0", "unknown"].map(addition_fix);
        let expected = [Some("3.5.30"), Some("3.5.30"), None, Some("3.6.11"), None, None, None];
        assert_eq!(fixes.each_ref().map(Option::as_deref), expected);
    }

    #[test]
    fn early_3_5_is_unsafe_to_defragment() {
        assert!(is_unsafe_to_defragment("3.5.0") && is_unsafe_to_defragment("3.5.5"));
        assert!(
            ["3.4.41", "3.5.6", "3.6.0", "unknown"].iter().all(|version| !is_unsafe_to_defragment(version))
        );
    }
}
