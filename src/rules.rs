//! Small rules about pods. Pure; knows nothing of reviews.

use crate::config::PodNames;

/// A name that holds a forbidden word.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("pod name {name:?} contains {word:?}, which no pod's name may here; choose another name")]
pub struct ForbiddenName {
    /// The name, or what it is generated from.
    pub name: String,
    /// The word.
    pub word: String,
}

/// What the apiserver keeps of `generateName`, and what it adds to it (`apiserver/pkg/storage/names/generate.go`,
/// `apimachinery/pkg/util/rand/rand.go`).
const LONGEST_BASE: usize = 58;
const ADDED: usize = 5;
const ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";

/// Judges a new pod's name. One that is generated is judged by what its maker chose, so that no pod is denied for the
/// five letters that the apiserver made up.
pub fn judge_name(name: &str, generate_name: &str, settings: &PodNames) -> Result<(), ForbiddenName> {
    let base = generate_name.get(..LONGEST_BASE).unwrap_or(generate_name);
    let is_added = |end: &str| end.len() == ADDED && end.chars().all(|it| ALPHABET.contains(it));
    let is_generated = !base.is_empty() && (name.is_empty() || name.strip_prefix(base).is_some_and(is_added));
    let chosen = if is_generated { base } else { name };
    match settings.forbidden_words.iter().find(|word| chosen.contains(word.as_str())) {
        Some(word) => Err(ForbiddenName { name: chosen.to_owned(), word: word.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{PodNames, judge_name};

    fn words() -> PodNames {
        PodNames { forbidden_words: vec![String::from("offensive"), String::from("x2x")] }
    }

    #[test]
    fn the_forbidden_word_is_named() {
        let denial = judge_name("an-offensive-pod", "", &words()).unwrap_err();
        assert_eq!(
            denial.to_string(),
            "pod name \"an-offensive-pod\" contains \"offensive\", which no pod's name may here; choose another name"
        );
        assert_eq!(judge_name("a-pod", "", &words()), Ok(()));
    }

    #[test]
    fn a_generated_name_is_judged_by_what_was_chosen() {
        assert_eq!(judge_name("offensive-bcd24", "offensive-", &words()).unwrap_err().name, "offensive-");
        assert_eq!(judge_name("", "offensive-", &words()).unwrap_err().name, "offensive-");
        assert_eq!(judge_name("web-x2xzb", "web-", &words()), Ok(()), "nobody chose this");
        assert!(judge_name("x2x", "web-", &words()).is_err(), "a name of its own in spite of generateName");
    }

    #[test]
    fn a_name_that_only_begins_like_a_generated_one_is_judged_whole() {
        for chosen in ["offensive-pod", "o-offensive", "offensive", "ooffensive", "ox2x1b"] {
            assert_eq!(judge_name(chosen, "o", &words()).unwrap_err().name, chosen);
        }
        // The StatefulSet controller gives both: the name is its own.
        assert!(judge_name("web-x2x", "web-", &words()).is_err());
        // Five characters, of which the generator has no vowels, no 1 and no l.
        assert!(judge_name("web-x2xa1", "web-", &words()).is_err());
        assert_eq!(judge_name("web-x2xbz", "web-", &words()), Ok(()));
    }

    #[test]
    fn of_a_long_generate_name_counts_what_is_left_of_it() {
        let base = "b".repeat(58);
        let name = format!("{base}x2xzz");
        assert_eq!(judge_name(&name, &format!("{base}offensive-"), &words()), Ok(()));
        assert_eq!(judge_name("", &format!("{base}offensive-"), &words()), Ok(()));
        assert!(judge_name("", &format!("{}x2x-", "b".repeat(55)), &words()).is_err());
    }
}
