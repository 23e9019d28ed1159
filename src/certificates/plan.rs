//! PURE: what a replica does next about certificates. No clock, no calls.
//!
//! A change goes: `Renew` (the Secret gets a next generation), `Publish` (every entry trusts it too), a pause in which
//! every apiserver sees that, `Promote` (the next becomes the current one), `Serve`. Any replica may do any of the steps, at
//! any time; the first three are guarded by resource versions, and the last is each replica's own.

#[cfg(test)]
mod tests;

/// What a replica knows when it has looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What the Secret holds; `None` where there is no Secret, or nothing usable in it.
    pub stored: Option<Stored>,
    /// What this replica serves.
    pub served: Served,
    /// Whether a configuration lacks a CA that it should have, or has one that ended.
    pub must_publish: bool,
}

/// What the Secret holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The generation that all should serve.
    pub current: Standing,
    /// The one that is to come.
    pub next: Option<Standing>,
}

/// How one stored generation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether an apiserver that trusts its CA would accept it.
    pub fit: bool,
    /// Whether it is time for a new one.
    pub due: bool,
    /// Whether all entries trust it.
    pub trust: Trust,
    /// Whether this replica serves it.
    pub served: bool,
}

/// Whether all entries trust a CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Some entry does not.
    Lacking,
    /// All do, but not for so long that every apiserver must have seen it.
    Fresh,
    /// All do, and every apiserver knows, or there is no entry and nobody asks.
    Settled,
}

/// What this replica serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Nothing yet.
    Nothing,
    /// Something that is no longer valid.
    Unfit,
    /// Something valid.
    Fit,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Store a new generation as the current one.
    Found,
    /// Store what this replica serves: the Secret was lost, and the others should not have to change.
    Restore,
    /// Serve the current generation.
    Serve,
    /// Give all entries the CAs of both generations, keep what is there, and take away what has ended.
    Publish,
    /// Make the next generation the current one.
    Promote,
    /// Store a new next generation.
    Renew,
    /// Look again soon: trust has to settle.
    Settle,
    /// Look again later.
    Rest,
}

/// What to do next.
#[must_use]
pub fn next_step(facts: &Facts) -> Step {
    let Some(Stored { current, next }) = facts.stored else {
        return if facts.served == Served::Fit { Step::Restore } else { Step::Found };
    };
    if !current.served && current.fit && current.trust == Trust::Settled {
        return Step::Serve;
    }
    if facts.must_publish {
        return Step::Publish;
    }
    let renewal_is_due = match next {
        // What is to come was made for other names, or by a clock that was wrong.
        Some(next) => !next.fit || next.due,
        None => !current.fit || current.due,
    };
    match next {
        _ if renewal_is_due => Step::Renew,
        Some(next) if next.trust == Trust::Settled => Step::Promote,
        None if current.served => Step::Rest,
        Some(_) | None => Step::Settle,
    }
}
