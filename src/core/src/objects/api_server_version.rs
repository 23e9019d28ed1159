//! Versions of API servers and kubelets.

/// The version of the API server, or of a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiServerVersion {
    /// Always 1 so far.
    pub major: u32,
    /// For instance 34.
    pub minor: u32,
}

// === impl ApiServerVersion ===

impl ApiServerVersion {
    /// The first release with native sidecars by default, for API servers and for kubelets.
    pub const NATIVE_SIDECARS: Self = Self { major: 1, minor: 29 };

    /// The first release of the API server of which all supported kubelets have native sidecars: a kubelet may be three
    /// releases older than its API server.
    pub const ALL_KUBELETS_HAVE_SIDECARS: Self = Self { major: 1, minor: 32 };

    /// Parses `v1.34.3`, the version of a kubelet.
    pub fn parse_full(version: &str) -> Option<Self> {
        let (major, rest) = version.trim_start_matches('v').split_once('.')?;
        Self::parse(major, rest.split('.').next()?)
    }

    /// Parses `1` and `34`; some cloud providers report `34+`.
    pub fn parse(major: &str, minor: &str) -> Option<Self> {
        let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        Some(Self { major: number(major)?, minor: number(minor)? })
    }

    /// Whether the API server with this version and all kubelets have native sidecars. `oldest` is the oldest version of all
    /// kubelets, if a node has reported one. If the kubelets are unknown, the supported version skew decides.
    pub fn has_native_sidecars(self, oldest: Option<Option<Self>>) -> bool {
        match oldest {
            _ if self < Self::NATIVE_SIDECARS => false,
            Some(oldest) => oldest.is_none_or(|oldest| oldest >= Self::NATIVE_SIDECARS),
            None => self >= Self::ALL_KUBELETS_HAVE_SIDECARS,
        }
    }
}
