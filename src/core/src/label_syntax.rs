//! The syntax of labels.

/// Maximum length of the value of a label, and of the name part of its key, in bytes.
pub const MAX_LABEL_NAME_LENGTH: usize = 63;

/// Maximum length of the prefix part of the key of a label, in bytes.
pub const MAX_LABEL_PREFIX_LENGTH: usize = 253;

/// Whether a text has the characters of the value of a label, or of the name part of its key. Its length is not checked.
pub fn is_label_part(text: &str) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Whether a text is the prefix part of the key of a label: a DNS subdomain.
pub fn is_label_prefix(text: &str) -> bool {
    text.len() <= MAX_LABEL_PREFIX_LENGTH && text.split('.').all(is_dns_label)
}

/// Whether a text is a DNS label. Its length is not checked.
pub fn is_dns_label(text: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    !text.is_empty() && text.bytes().all(is_allowed) && !text.starts_with('-') && !text.ends_with('-')
}
