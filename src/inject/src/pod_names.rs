//! Rules for new pods. The module is pure and does not know admission reviews.

use crate::config::pod_names::PodNames;

/// A pod name that contains a forbidden word.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("pod name {name:?} contains the forbidden word {word:?}. Choose another name, then retry")]
pub struct ForbiddenName {
    /// The name, or the base of a generated name.
    pub name: String,
    /// The forbidden word.
    pub word: String,
}

/// Maximum length of `generateName` after truncation by the API server (`apiserver/pkg/storage/names/generate.go`).
const MAX_BASE_LENGTH: usize = 58;

/// Length of the random suffix that the API server appends to `generateName`.
const SUFFIX_LENGTH: usize = 5;

/// Characters of the random suffix (`apimachinery/pkg/util/rand/rand.go`).
const SUFFIX_ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";

/// Rejects a new pod's name if it contains a forbidden word. Only the chosen part of a generated name is checked,
/// because the API server's random suffix may contain any word.
pub fn check_pod_name(name: &str, generate_name: &str, settings: &PodNames) -> Result<(), ForbiddenName> {
    let base = generate_name.get(..MAX_BASE_LENGTH).unwrap_or(generate_name);
    let is_suffix = |text: &str| {
        text.len() == SUFFIX_LENGTH && text.chars().all(|letter| SUFFIX_ALPHABET.contains(letter))
    };
    let is_generated =
        !base.is_empty() && (name.is_empty() || name.strip_prefix(base).is_some_and(is_suffix));
    let chosen = if is_generated { base } else { name };
    match settings.forbidden_words.iter().find(|word| chosen.contains(word.as_str())) {
        Some(word) => Err(ForbiddenName { name: chosen.to_owned(), word: word.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{PodNames, check_pod_name};

    fn settings() -> PodNames {
        PodNames { forbidden_words: vec![String::from("offensive"), String::from("x2x")] }
    }

    #[test]
    fn reports_the_forbidden_word() {
        let denial = check_pod_name("an-offensive-pod", "", &settings()).unwrap_err();
        assert_eq!(
            denial.to_string(),
            "pod name \"an-offensive-pod\" contains the forbidden word \"offensive\". Choose another name, then retry"
        );
        assert_eq!(check_pod_name("a-pod", "", &settings()), Ok(()));
    }

    #[test]
    fn checks_only_the_chosen_part_of_a_generated_name() {
        assert_eq!(
            check_pod_name("offensive-bcd24", "offensive-", &settings()).unwrap_err().name,
            "offensive-"
        );
        assert_eq!(check_pod_name("", "offensive-", &settings()).unwrap_err().name, "offensive-");
        assert_eq!(check_pod_name("web-x2xzb", "web-", &settings()), Ok(()), "random suffix");
        assert!(
            check_pod_name("x2x", "web-", &settings()).is_err(),
            "an explicit name takes precedence over generateName"
        );
    }

    #[test]
    fn checks_a_name_that_only_resembles_a_generated_one() {
        for chosen in ["offensive-pod", "o-offensive", "offensive", "ooffensive", "ox2x1b"] {
            assert_eq!(check_pod_name(chosen, "o", &settings()).unwrap_err().name, chosen);
        }
        // The StatefulSet controller sets both fields: the name is explicit.
        assert!(check_pod_name("web-x2x", "web-", &settings()).is_err());
        // Five characters, but the generator uses no vowels, no 1 and no l.
        assert!(check_pod_name("web-x2xa1", "web-", &settings()).is_err());
        assert_eq!(check_pod_name("web-x2xbz", "web-", &settings()), Ok(()));
    }

    #[test]
    fn checks_the_truncated_base_of_a_long_generate_name() {
        let base = "b".repeat(58);
        let name = format!("{base}x2xzz");
        assert_eq!(check_pod_name(&name, &format!("{base}offensive-"), &settings()), Ok(()));
        assert_eq!(check_pod_name("", &format!("{base}offensive-"), &settings()), Ok(()));
        assert!(check_pod_name("", &format!("{}x2x-", "b".repeat(55)), &settings()).is_err());
    }
}
