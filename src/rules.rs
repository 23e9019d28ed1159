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

/// Judges a new pod's name. One that is generated is judged by what its maker chose, so that no pod is denied for the
/// five letters that the apiserver made up.
pub fn judge_name(name: &str, generate_name: &str, settings: &PodNames) -> Result<(), ForbiddenName> {
    let is_generated = !generate_name.is_empty() && (name.is_empty() || name.starts_with(generate_name));
    let chosen = if is_generated { generate_name } else { name };
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
        assert_eq!(judge_name("offensive-abcde", "offensive-", &words()).unwrap_err().name, "offensive-");
        assert_eq!(judge_name("", "offensive-", &words()).unwrap_err().name, "offensive-");
        assert_eq!(judge_name("web-x2xab", "web-", &words()), Ok(()), "nobody chose this");
        assert!(judge_name("x2x", "web-", &words()).is_err(), "a name of its own in spite of generateName");
    }
}
