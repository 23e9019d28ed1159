//! PURE: the next step of a replica towards the desired certificates. No clock, no I/O.
//!
//! A renewal consists of these steps: `Renew` (the Secret gets a next set), `Publish` (every entry also trusts its CA),
//! a pause in which all API servers observe that, `Promote` (the next set becomes the current one), `Serve`. The first
//! set takes the same path, because servers that mount the Secret serve its current set at once. Any process may do any
//! step at any time: the writes are protected by resource versions, and `Serve` concerns only the process itself.

#[cfg(test)]
mod tests;

/// The state that a replica observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The sets in the Secret; `None` if there is no Secret or no usable set in it.
    pub stored: Option<Stored>,
    /// The set that this process serves, or that the servers receive with the Secret.
    pub served: Served,
    /// Whether a configuration lacks a required CA or contains an expired one.
    pub must_publish: bool,
}

/// The state of the sets in the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The set that all replicas should serve; `None` until all entries trust the first one.
    pub current: Option<SetState>,
    /// The set that replaces it.
    pub next: Option<SetState>,
}

/// The state of one stored set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetState {
    /// Whether an API server that trusts the CA would accept the leaf.
    pub is_valid: bool,
    /// Whether the set must be renewed.
    pub renewal_due: bool,
    /// Whether all entries trust the CA.
    pub trust: Trust,
    /// Whether this replica serves the set.
    pub is_served: bool,
}

/// Whether all entries trust a CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// At least one entry does not.
    Missing,
    /// All entries do, but API servers may not have observed it yet.
    Propagating,
    /// All entries do and all API servers have observed it, or there is no entry.
    Propagated,
}

/// The state of the set that this replica serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// The replica serves no set yet.
    Nothing,
    /// The set is no longer valid.
    Invalid,
    /// The set is valid.
    Valid,
}

/// A step of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Store a new set as the next one, without a current one.
    Create,
    /// Store the served set: the Secret was lost, and the other replicas should not have to change.
    Restore,
    /// Serve the current set.
    Serve,
    /// Add the CAs of both sets to all entries, keep other CAs and remove expired ones.
    Publish,
    /// Make the next set the current one.
    Promote,
    /// Store a new next set.
    Renew,
    /// Observe again soon: the trust is propagating.
    AwaitPropagation,
    /// Observe again later.
    Idle,
}

/// Returns the next step.
pub(crate) fn next_step(state: &State) -> Step {
    let Some(Stored { current, next }) = state.stored else {
        return if state.served == Served::Valid { Step::Restore } else { Step::Create };
    };
    if current.is_some_and(|set| !set.is_served && set.is_valid && set.trust == Trust::Propagated) {
        return Step::Serve;
    }
    if state.must_publish {
        return Step::Publish;
    }
    // The next set may be for other names, or may have been created by a clock that was wrong.
    let must_renew = next.or(current).is_none_or(|set| !set.is_valid || set.renewal_due);
    match next {
        _ if must_renew => Step::Renew,
        Some(next) if next.trust == Trust::Propagated => Step::Promote,
        None if current.is_some_and(|set| set.is_served) => Step::Idle,
        Some(_) | None => Step::AwaitPropagation,
    }
}
