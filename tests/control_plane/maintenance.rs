//! The command `check node/NAME`.

mod drain_preview;
