//! Reasons for injections and their absence, from a closed set for metrics and audit annotations.

use etcd_guard_core::escape::to_single_line;

/// Maximum length of a user's text in a warning, in characters.
const MAX_QUOTED_CHARS: usize = 40;

/// A part that was injected or skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The reason.
    pub reason: Reason,
    /// The warning for the user, on one line.
    pub warning: Option<String>,
}

/// The outcome for a part of an injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The part is added to the pod.
    Injected,
    /// The pod already has the part.
    Unchanged,
    /// The part is skipped.
    Skipped,
    /// The part is added, but the API server may reject the pod because of it.
    Warned,
    /// The pod is denied.
    Denied,
    /// An internal error. The pod is admitted unchanged.
    Failed,
}

/// Declares each reason once: its documentation, its name and its outcome.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $outcome:ident,)*) => {
        /// Why a part was injected or skipped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The reason code.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The outcome that the reason implies.
            pub const fn outcome(self) -> Outcome {
                match self { $(Self::$name => Outcome::$outcome,)* }
            }
        }
    };
}

reasons! {
    /// The files of lxcfs.
    Lxcfs => Injected,
    /// A template.
    Sidecar => Injected,
    /// Tolerations for the requested lifespan.
    Lifespan => Injected,
    /// The pod already has all parts.
    AlreadyInjected => Unchanged,
    /// The pod is the mirror of a static pod.
    MirrorPod => Skipped,
    /// The pod is for Windows.
    Windows => Skipped,
    /// The configuration excludes the namespace.
    SkippedNamespace => Skipped,
    /// The pod's containers share a process namespace.
    SharedProcessNamespace => Skipped,
    /// The pod shares its node's process namespace.
    HostProcesses => Skipped,
    /// The pod has a user namespace of its own.
    UserNamespace => Skipped,
    /// lxcfs does not support the pod's runtime class.
    RuntimeClass => Skipped,
    /// The namespace enforces a Pod Security level that forbids the part.
    PodSecurity => Skipped,
    /// The containers of the template exceed the resources of the whole pod.
    PodResources => Skipped,
    /// A quota of the namespace rejects an injected container.
    ResourceQuota => Warned,
    /// A limit range of the namespace rejects an injected container, or the pod because of it.
    LimitRange => Warned,
    /// The cluster has no native sidecars, and an ordinary container would keep the pod from ending.
    NoNativeSidecars => Skipped,
    /// The namespace's labels could not be read.
    NamespaceUnknown => Skipped,
    /// The pod uses its node's network.
    HostNetwork => Skipped,
    /// The pod has a different part with the same name or path.
    Conflict => Skipped,
    /// The pod lacks a volume that the template requires.
    MissingVolume => Skipped,
    /// No container is selected.
    NoContainer => Skipped,
    /// The pod requests a template that does not exist.
    UnknownTemplate => Skipped,
    /// The pod requests a file that lxcfs does not serve.
    UnknownFile => Skipped,
    /// The pod overrides a field of a template's container, and the template does not allow the override.
    OverrideRefused => Skipped,
    /// The pod's request has an unknown value, or requests the default list, which is empty.
    UnknownValue => Skipped,
    /// The requested lifespan is not an allowed number.
    BadLifespan => Denied,
    /// The patch is inconsistent.
    PatchFailed => Failed,
}

/// Truncates a user's text to [`MAX_QUOTED_CHARS`] characters, for warnings.
pub(super) fn truncated(text: &str) -> &str {
    text.char_indices().nth(MAX_QUOTED_CHARS).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

// === impl Note ===

impl Note {
    /// Creates a note without a warning, for an injected part or a part that the pod already has.
    pub(super) fn without_warning(reason: Reason) -> Self {
        Self { reason, warning: None }
    }

    /// Creates a note about a part that was skipped or that may cause a rejection. The warning may contain texts of the pod.
    pub(super) fn skipped(reason: Reason, warning: impl AsRef<str>) -> Self {
        Self { reason, warning: Some(to_single_line(warning.as_ref())) }
    }
}

// === impl Outcome ===

impl Outcome {
    /// The value of a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::Unchanged => "unchanged",
            Self::Skipped => "skipped",
            Self::Warned => "warned",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}
