//! Reads the configuration file, and reads it again when its content changes.

use crate::config::Config;
use etcd_guard_core::config::{diagnostic::Diagnostic, document};

// === impl Config ===

impl Config {
    /// Parses and validates the text of a configuration file. The error holds all diagnostics in the order of their
    /// lines.
    pub fn read(text: &str) -> Result<Self, Vec<Diagnostic>> {
        document::read(text, Self::validate).map(|mut config: Self| {
            config.sidecars.prepare();
            config
        })
    }
}
