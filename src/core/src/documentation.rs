//! Addresses of sections in the manual, for denials and reports.

use std::{str::FromStr, sync::Arc};

use crate::{escape::is_plain, reason::Reason};

/// Where the manual is published, unless a flag names another place.
pub const DEFAULT_URL: &str = "https://etcd-guard.io";

/// The manual as a website.
#[derive(Clone, Debug)]
pub struct Manual {
    url: Arc<str>,
}

// === impl Manual ===

impl Manual {
    /// The manual at this address, with or without a slash at the end.
    pub fn new(url: &str) -> Self {
        Self { url: url.trim_end_matches('/').into() }
    }

    /// Returns the address of a section. `page` is the name of a file in `docs/` without its extension.
    pub fn section(&self, page: &str, anchor: &str) -> String {
        format!("{}/{page}.html#{anchor}", self.url)
    }

    /// Returns the address of the section that explains a reason.
    pub fn reason(&self, reason: Reason) -> String {
        self.section("reasons", &reason.as_str().to_lowercase())
    }
}

impl FromStr for Manual {
    type Err = &'static str;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let is_link = url.starts_with("https://") || url.starts_with("http://");
        if is_link && is_plain(url.as_bytes()) && !url.contains([' ', '#', '?']) {
            Ok(Self::new(url))
        } else {
            Err("not the URL of a website, such as https://docs.example.com/etcd-guard")
        }
    }
}

impl Default for Manual {
    fn default() -> Self {
        Self::new(DEFAULT_URL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_at_the_end_makes_no_difference() {
        for url in ["https://docs.example.com/etcd-guard", "https://docs.example.com/etcd-guard/"] {
            let section = url.parse::<Manual>().unwrap().reason(Reason::QuorumAtRisk);
            assert_eq!(section, "https://docs.example.com/etcd-guard/reasons.html#quorumatrisk");
        }
    }

    #[test]
    fn rejects_what_a_terminal_opens_not_or_differently() {
        for url in
            ["", "docs.example.com", "javascript:alert(1)", "https://a b", "https://a/?q=", "https://a\n"]
        {
            assert!(url.parse::<Manual>().is_err(), "{url}");
        }
    }
}
