//! Why a pod got something or did not, in closed words for metrics and audits.

use crate::one_line::one_line;

/// One thing that was done or left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Why.
    pub reason: Reason,
    /// What the user is told, on one line.
    pub warning: Option<String>,
}

/// What became of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Result {
    /// The pod gets it.
    Injected,
    /// It was there already.
    Unchanged,
    /// It was left out.
    Skipped,
    /// The pod is denied.
    Denied,
    /// An error of this program's own; the pod is admitted as it came.
    Failed,
}

/// Declares the reasons once: name, what it says of what became of the thing, and its text in this program's documentation.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $result:ident,)*) => {
        /// Why something was done or left out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons there are.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// As it is written everywhere.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// What it says of what became of the thing.
            #[must_use]
            pub const fn result(self) -> Result {
                match self { $(Self::$name => Result::$result,)* }
            }
        }
    };
}

reasons! {
    /// The files of lxcfs.
    Lxcfs => Injected,
    /// A template.
    Sidecar => Injected,
    /// Tolerations by the requested lifespan.
    Lifespan => Injected,
    /// All of it was there.
    AlreadyInjected => Unchanged,
    /// The pod mirrors a static one.
    MirrorPod => Skipped,
    /// The pod is for Windows.
    Windows => Skipped,
    /// The configuration leaves the namespace alone.
    SkippedNamespace => Skipped,
    /// The pod's containers share a process namespace.
    SharedProcessNamespace => Skipped,
    /// The pod sees its node's processes.
    HostProcesses => Skipped,
    /// The pod's runtime class does not go with it.
    RuntimeClass => Skipped,
    /// The namespace enforces a Pod Security level that forbids it.
    PodSecurity => Skipped,
    /// The namespace's labels could not be read.
    NamespaceUnknown => Skipped,
    /// The pod is in its node's network.
    HostNetwork => Skipped,
    /// The pod has something of its own of the same name or at the same path.
    Conflict => Skipped,
    /// A volume that the pod should bring is not there.
    MissingVolume => Skipped,
    /// No container is left that should get it.
    NoContainer => Skipped,
    /// The pod asks for a template that there is not.
    UnknownTemplate => Skipped,
    /// The pod asks for a file of lxcfs that it cannot have.
    UnknownFile => Skipped,
    /// The pod would have a template's container otherwise than the template lets it.
    OverrideRefused => Skipped,
    /// The pod asks in words that are not understood, or for the default list where that is empty.
    UnknownValue => Skipped,
    /// The requested lifespan is no number that is allowed.
    BadLifespan => Denied,
    /// The patch did not lead where it should.
    PatchFailed => Failed,
}

// === impl Note ===

impl Note {
    /// Something was done, of which nobody needs to be told.
    pub(super) fn done(reason: Reason) -> Self {
        Self { reason, warning: None }
    }

    /// Something was left out. The warning may repeat what the pod says.
    pub(super) fn skipped(reason: Reason, warning: impl AsRef<str>) -> Self {
        Self { reason, warning: Some(one_line(warning.as_ref())) }
    }
}

// === impl Result ===

impl Result {
    /// As it is written everywhere.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::Unchanged => "unchanged",
            Self::Skipped => "skipped",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}
