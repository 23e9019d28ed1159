//! Paths in volumes and containers.

use crate::config::validation::diagnostic::Validator;

/// Checks a path that must not lead upwards.
pub(super) fn check_path_without_parents(path: &str, validator: &mut Validator<'_>) {
    if path.split('/').any(|part| part == "..") {
        validator.report(format!("{path:?} contains '..'"));
    }
}

/// Checks a path relative to the root of a volume.
pub(super) fn check_descending_path(path: &str, validator: &mut Validator<'_>) {
    if path.starts_with('/') {
        validator.report(format!("{path:?} is not a relative path"));
    }
    check_path_without_parents(path, validator);
}

/// Checks the path of a file in a volume. The kubelet reserves names that start with two dots.
pub(super) fn check_file_path(path: &str, validator: &mut Validator<'_>) {
    if path.starts_with("..") && !path.starts_with("../") && path != ".." {
        validator.report(format!("{path:?} starts with '..'"));
    }
    check_descending_path(path, validator);
}

/// Checks a path from the root of a file system.
pub(super) fn check_absolute_path(path: &str, validator: &mut Validator<'_>) {
    if !path.starts_with('/') {
        validator.report(format!("{path:?} is not an absolute path"));
    }
}
