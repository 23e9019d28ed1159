//! Why a pod got something or did not, in closed words for metrics and audits.

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

/// Why something was done or left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The files of lxcfs.
    Lxcfs,
    /// A template.
    Sidecar,
    /// Tolerations by the requested lifespan.
    Lifespan,
    /// All of it was there.
    AlreadyInjected,
    /// The pod mirrors a static one.
    MirrorPod,
    /// The pod is for Windows.
    Windows,
    /// The configuration leaves the namespace alone.
    SkippedNamespace,
    /// The pod's containers share a process namespace.
    SharedProcessNamespace,
    /// The pod sees its node's processes.
    HostProcesses,
    /// The pod's runtime class does not go with it.
    RuntimeClass,
    /// The namespace enforces a Pod Security level that forbids it.
    PodSecurity,
    /// The namespace's labels could not be read.
    NamespaceUnknown,
    /// The pod is in its node's network.
    HostNetwork,
    /// The pod has something of its own of the same name or at the same path.
    Conflict,
    /// A volume that the pod should bring is not there.
    MissingVolume,
    /// No container is left that should get it.
    NoContainer,
    /// The pod asks for a template that there is not.
    UnknownTemplate,
    /// The pod asks for a file of lxcfs that it cannot have.
    UnknownFile,
    /// The pod would have a template's container otherwise than the template lets it.
    OverrideRefused,
    /// The pod asks in words that are not understood.
    UnknownValue,
    /// The requested lifespan is no number that is allowed.
    BadLifespan,
    /// The patch did not lead where it should.
    PatchFailed,
}

// === impl Note ===

impl Note {
    /// Something was done, of which nobody needs to be told.
    pub(super) fn done(reason: Reason) -> Self {
        Self { reason, warning: None }
    }

    /// Something was left out.
    pub(super) fn skipped(reason: Reason, warning: impl Into<String>) -> Self {
        Self { reason, warning: Some(warning.into()) }
    }
}

// === impl Reason ===

impl Reason {
    /// As it is written everywhere.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Lxcfs => "Lxcfs",
            Self::Sidecar => "Sidecar",
            Self::Lifespan => "Lifespan",
            Self::AlreadyInjected => "AlreadyInjected",
            Self::MirrorPod => "MirrorPod",
            Self::Windows => "Windows",
            Self::SkippedNamespace => "SkippedNamespace",
            Self::SharedProcessNamespace => "SharedProcessNamespace",
            Self::HostProcesses => "HostProcesses",
            Self::RuntimeClass => "RuntimeClass",
            Self::PodSecurity => "PodSecurity",
            Self::NamespaceUnknown => "NamespaceUnknown",
            Self::HostNetwork => "HostNetwork",
            Self::Conflict => "Conflict",
            Self::MissingVolume => "MissingVolume",
            Self::NoContainer => "NoContainer",
            Self::UnknownTemplate => "UnknownTemplate",
            Self::UnknownFile => "UnknownFile",
            Self::OverrideRefused => "OverrideRefused",
            Self::UnknownValue => "UnknownValue",
            Self::BadLifespan => "BadLifespan",
            Self::PatchFailed => "PatchFailed",
        }
    }

    /// What it says of what became of the thing.
    #[must_use]
    pub fn result(self) -> Result {
        match self {
            Self::Lxcfs | Self::Sidecar | Self::Lifespan => Result::Injected,
            Self::AlreadyInjected => Result::Unchanged,
            Self::BadLifespan => Result::Denied,
            Self::PatchFailed => Result::Failed,
            _ => Result::Skipped,
        }
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
